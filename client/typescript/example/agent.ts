// Answers a question about the files here; the model has a tool that counts their words.
// node dist/example/agent.js "How many words has README.md?" [HOST:PORT]
import { readdir, readFile } from "node:fs/promises";
import { connect, TielineError, Toolbox } from "@tieline/client";

const [question = "How many words has README.md?", address = "127.0.0.1:50051"] =
  process.argv.slice(2);

const files = (await readdir(".", { withFileTypes: true })).filter((entry) => entry.isFile());
const tools = new Toolbox([
  {
    name: "count_words",
    description: "Counts the words of a file.",
    parameters: {
      type: "object",
      properties: { file: { type: "string", enum: files.map(({ name }) => name) } },
      required: ["file"],
      additionalProperties: false,
    },
    async run({ file }: { file: string }) {
      const words = (await readFile(file, "utf8")).split(/\s+/).filter(Boolean).length;
      console.error(`[${file} has ${words} words]`);
      return `${file} has ${words} words.`;
    },
  },
]);

try {
  using connection = await connect(address, { key: process.env.TIELINE_API_KEY });
  // The first word must be a call, since a tiny model would rather guess.
  const choice = { case: "toolChoice" as const, value: "required" };
  const limits = { maxOutputTokens: 200, maxToolCalls: 4 };
  const instructions = "Call count_words once. Then answer in one short sentence.";
  const turn = connection.turn({ input: question, choice, instructions, ...limits }, { tools });
  for await (const { event } of turn)
    if (event.case === "outputTextDelta") process.stdout.write(event.value.delta);
  console.log(`\n(${(await turn.result()).usage?.totalTokens} tokens)`);
} catch (error) {
  if (!(error instanceof TielineError)) throw error;
  console.error(`${error.code}: ${error.message}`);
  process.exitCode = 1;
}
