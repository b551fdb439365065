package tieline

import (
	"strings"

	v1 "tieline.dev/client/go/tielinev1"
)

// NewCreate asks for one response to these items.
func NewCreate(items ...*v1.Item) *v1.ResponseCreate {
	return &v1.ResponseCreate{Input: &v1.ResponseCreate_InputItems{InputItems: &v1.ItemList{Items: items}}}
}

// UserText is a message of the user.
func UserText(text string) *v1.Item {
	message := &v1.Message{Role: "user", Content: &v1.Message_Text{Text: text}}
	return &v1.Item{Item: &v1.Item_Message{Message: message}}
}

// FunctionOutput is what the function of a call returned.
func FunctionOutput(callID, text string) *v1.Item {
	output := &v1.FunctionCallOutput{CallId: callID, Output: &v1.FunctionCallOutput_Text{Text: text}}
	return &v1.Item{Item: &v1.Item_FunctionCallOutput{FunctionCallOutput: output}}
}

// FunctionTool offers a function whose parameters are a JSON schema.
func FunctionTool(name, description, parametersJSON string) *v1.Tool {
	function := &v1.FunctionTool{Name: name, Description: &description, ParametersJson: &parametersJSON}
	return &v1.Tool{Tool: &v1.Tool_Function{Function: function}}
}

// Text is what the model said in a response, joined.
func Text(response *v1.Response) string {
	var text strings.Builder
	for _, item := range response.GetOutput() {
		text.WriteString(item.GetMessage().GetText())
		for _, part := range item.GetMessage().GetParts().GetParts() {
			text.WriteString(part.GetText().GetText())
		}
	}
	return text.String()
}
