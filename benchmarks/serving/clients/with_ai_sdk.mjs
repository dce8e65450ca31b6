// Vercel AI SDK: text, an object, and a task with a tool, by choice and by "required".
import assert from "node:assert";
import { createRequire } from "node:module";

const require = createRequire(process.env.NODE_PATH + "/");
const { generateObject, generateText, stepCountIs, streamText, tool } = require("ai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { createOpenAI } = require("@ai-sdk/openai");
const { z } = require("zod");
const { PACELINE_URL, PACELINE_MODEL } = process.env;
const to = { baseURL: PACELINE_URL + "/v1", apiKey: "x" };
const compatible = createOpenAICompatible({ name: "paceline", ...to, includeUsage: true });
const common = { temperature: 0, maxRetries: 0, maxOutputTokens: 300 };
const prompt = "How many people live in Paris? Use the tool people.";

for (const model of [compatible(PACELINE_MODEL), createOpenAI(to).responses(PACELINE_MODEL)]) {
  let calls = 0;
  const people = tool({
    description: "Tell how many people live in a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (calls++, { city, people: 2102650 }),
  });
  const asked = { model, ...common, prompt, tools: { people } };
  // A weak model that is shown its tools asks again and again.
  const prepareStep = ({ stepNumber }) => (stepNumber ? { toolChoice: "none" } : {});
  const done = await generateText({ ...asked, prepareStep, stopWhen: stepCountIs(3) });
  assert.ok(calls > 0);
  assert.ok(done.text.replaceAll(",", "").includes("2102650"), done.text);
  console.log(`${model.provider}: a task with a tool`);
  const held = await generateText({ ...asked, toolChoice: "required" });
  assert.strictEqual(held.toolCalls.length, 1);
  assert.ok(held.toolCalls.every((call) => call.toolName === "people" && call.input.city));
  console.log("a call that is required");
  const stream = streamText({ model, ...common, prompt: "Name a river." });
  let text = "";
  for await (const part of stream.textStream) text += part;
  assert.ok(text);
  const schema = z.object({ city: z.enum(["Paris", "Rome"]) });
  const { object } = await generateObject({ model, ...common, schema, prompt: "Name a city." });
  assert.ok(["Paris", "Rome"].includes(object.city));
  console.log("streaming, an object");
}
