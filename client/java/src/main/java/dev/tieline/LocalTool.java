package dev.tieline;

/** A function that the model may call; its parameters are a JSON schema. */
public record LocalTool(String name, String description, String parametersJson, Function function) {
    /** The model is told what it returns, be it an exception. */
    @FunctionalInterface
    public interface Function {
        String call(String argumentsJson) throws Exception;
    }

    /** What the model is told. */
    String run(String argumentsJson) {
        try {
            return function.call(argumentsJson);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            return "error: interrupted";
        } catch (Exception e) {
            return "error: " + e;
        }
    }
}
