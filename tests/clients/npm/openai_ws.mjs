// OpenAI's own library over WebSocket, unchanged: a tool loop on one socket, then an error.
// node openai_ws.mjs BASE_URL true|false (store); its last line is what came of it.

import { writeFile } from 'node:fs/promises';

import OpenAI from 'openai';
import { ResponsesWS } from 'openai/resources/responses/ws';

const [baseURL, stored] = process.argv.slice(2);
const settings = {
  type: 'response.create',
  model: 'scripted',
  store: stored === 'true',
  tools: [
    {
      type: 'function',
      name: 'write_file',
      description: 'Writes a file.',
      parameters: {
        type: 'object',
        properties: { name: { type: 'string' }, text: { type: 'string' } },
      },
      strict: false,
    },
  ],
};
const socket = new ResponsesWS(new OpenAI({ baseURL, apiKey: 'none' }));
const failures = [];
// An error event: the library emits it here, and as an event too.
socket.on('error', (error) => failures.push(error.error?.error?.code ?? error.message));

function turn(members) {
  return new Promise((resolve) => {
    function take(event) {
      if (['response.completed', 'response.failed', 'error'].includes(event.type)) {
        socket.off('event', take);
        resolve(event);
      }
    }
    socket.on('event', take);
    socket.send({ ...settings, ...members });
  });
}

const texts = [];
let cached = 0;
let previous;
for (const number of [1, 2, 3]) {
  const asked = (
    await turn({ input: `write proof ${number}`, previous_response_id: previous })
  ).response;
  const call = asked.output.find((item) => item.type === 'function_call');
  const { name, text } = JSON.parse(call.arguments);
  await writeFile(name, text);
  const output = `${text.length} characters`;
  const answer = { type: 'function_call_output', call_id: call.call_id, output };
  const told = (await turn({ input: [answer], previous_response_id: asked.id })).response;
  texts.push(told.output.at(-1).content[0].text);
  cached = told.usage.input_tokens_details.cached_tokens;
  previous = told.id;
}
const refused = await turn({ input: 'x', previous_response_id: 'resp_unknown' });
socket.close();
console.log(JSON.stringify({ texts, cached, refused: refused.error?.code ?? refused.type, failures }));
