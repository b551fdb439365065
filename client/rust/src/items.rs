use crate::v1::{
    content_part, function_call_output, item, message, response_create, tool, FunctionCallOutput,
    FunctionTool, Item, ItemList, Message, Response, ResponseCreate, Tool,
};

/// Asks for one response to these items.
pub fn create(items: impl IntoIterator<Item = Item>) -> ResponseCreate {
    let input = response_create::Input::InputItems(ItemList { items: items.into_iter().collect() });
    ResponseCreate { input: Some(input), ..Default::default() }
}

impl From<&str> for ResponseCreate {
    fn from(text: &str) -> Self {
        create([user_text(text)])
    }
}

/// A message of the user.
pub fn user_text(text: impl Into<String>) -> Item {
    let content = Some(message::Content::Text(text.into()));
    let said = Message { role: "user".into(), content, ..Default::default() };
    Item { item: Some(item::Item::Message(said)) }
}

/// What the function of a call returned.
pub fn function_output(call_id: impl Into<String>, text: impl Into<String>) -> Item {
    let output = Some(function_call_output::Output::Text(text.into()));
    let returned = FunctionCallOutput { call_id: call_id.into(), output, ..Default::default() };
    Item { item: Some(item::Item::FunctionCallOutput(returned)) }
}

/// Offers a function whose parameters are a JSON schema.
pub fn function_tool(name: &str, description: &str, parameters_json: &str) -> Tool {
    let function = FunctionTool {
        name: name.into(),
        description: Some(description.into()),
        parameters_json: Some(parameters_json.into()),
        ..Default::default()
    };
    Tool { tool: Some(tool::Tool::Function(function)) }
}

/// What the model said in a response, joined.
pub fn text(response: &Response) -> String {
    let mut joined = String::new();
    for item in &response.output {
        let Some(item::Item::Message(said)) = &item.item else { continue };
        match &said.content {
            Some(message::Content::Text(text)) => joined.push_str(text),
            Some(message::Content::Parts(list)) => {
                for part in &list.parts {
                    if let Some(content_part::Part::Text(part)) = &part.part {
                        joined.push_str(&part.text);
                    }
                }
            }
            None => {}
        }
    }
    joined
}
