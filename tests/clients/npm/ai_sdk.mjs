// Vercel's AI SDK, unchanged: a tool loop, then a second question.
// node ai_sdk.mjs BASE_URL sse|websocket true|false (store); its last line is what came of it.

import { writeFile } from 'node:fs/promises';

import { createOpenAI } from '@ai-sdk/openai';
import { createWebSocketFetch } from '@vercel/ai-sdk-openai-websocket-fetch';
import { stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const [baseURL, transport, stored] = process.argv.slice(2);
const store = stored === 'true';
const websocket =
  transport === 'websocket'
    ? createWebSocketFetch({ url: `${baseURL.replace(/^http/, 'ws')}/responses` })
    : undefined;
const openai = createOpenAI({ baseURL, apiKey: 'none', fetch: websocket });
const tools = {
  write_file: tool({
    description: 'Writes a file.',
    inputSchema: z.object({ name: z.string(), text: z.string() }),
    execute: async ({ name, text }) => {
      await writeFile(name, text);
      return `${text.length} characters`;
    },
  }),
};

async function ask(messages, options) {
  const result = streamText({
    model: openai('scripted'),
    messages,
    tools,
    stopWhen: stepCountIs(5),
    maxRetries: 0,
    providerOptions: { openai: { store, forceReasoning: true, ...options } },
    onError: ({ error }) => {
      throw error;
    },
  });
  let text = '';
  for await (const piece of result.textStream) text += piece;
  return { result, text };
}

const question = { role: 'user', content: 'write proof' };
const again = { role: 'user', content: 'and now?' };
const first = await ask([question], {});
const steps = await first.result.steps;
const { responseId } = steps.at(-1).providerMetadata.openai;
// Over HTTP an id goes on only from what is stored; on a socket, from the line as well.
const continues = store || websocket !== undefined;
const second = continues
  ? await ask([again], { previousResponseId: responseId })
  : await ask([question, ...(await first.result.response).messages, again], {});
websocket?.close();
const cached = (await second.result.usage).inputTokenDetails.cacheReadTokens;
console.log(JSON.stringify({ first: first.text, steps: steps.length, second: second.text, cached }));
