package dev.tieline;

import dev.tieline.v1.FunctionCallOutput;
import dev.tieline.v1.FunctionTool;
import dev.tieline.v1.Item;
import dev.tieline.v1.ItemList;
import dev.tieline.v1.Message;
import dev.tieline.v1.Response;
import dev.tieline.v1.ResponseCreate;
import dev.tieline.v1.Tool;
import java.util.List;

/** Makes and reads messages of the schema, to be imported statically. */
public final class Tieline {
    private Tieline() {}

    /** Asks for one response to these items. */
    public static ResponseCreate.Builder create(Item... items) {
        return ResponseCreate.newBuilder().setInputItems(ItemList.newBuilder().addAllItems(List.of(items)));
    }

    /** A message of the user. */
    public static Item userText(String text) {
        return Item.newBuilder().setMessage(Message.newBuilder().setRole("user").setText(text)).build();
    }

    /** What the function of a call returned. */
    public static Item functionOutput(String callId, String text) {
        var output = FunctionCallOutput.newBuilder().setCallId(callId).setText(text);
        return Item.newBuilder().setFunctionCallOutput(output).build();
    }

    /** Offers a function whose parameters are a JSON schema. */
    public static Tool functionTool(String name, String description, String parametersJson) {
        var tool = FunctionTool.newBuilder().setName(name).setDescription(description);
        return Tool.newBuilder().setFunction(tool.setParametersJson(parametersJson)).build();
    }

    /** What the model said in a response, joined. */
    public static String text(Response response) {
        var text = new StringBuilder();
        for (Item item : response.getOutputList()) {
            text.append(item.getMessage().getText());
            item.getMessage().getParts().getPartsList().forEach(part -> text.append(part.getText().getText()));
        }
        return text.toString();
    }
}
