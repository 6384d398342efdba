// Tests the hub's API with the official Node package `openai`: the counterpart of openai_suite.py.
//
//     node openai_suite.mjs http://127.0.0.1:8080/v1 MODEL
//
// Each entry of `checks` is one check, named after the rule that it tests. Prints a line for each, and ends with 1 if
// one fails. The demo model can answer the questions.

import assert from "node:assert/strict";

import OpenAI from "openai";

const [url, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0, timeout: 120_000 });

const STORY = "Tell me a story about a bear.";
const QUIET = { chat_template_kwargs: { enable_thinking: false } };
const WEATHER = {
  name: "get_weather",
  description: "Get weather.",
  parameters: {
    type: "object",
    properties: { city: { type: "string", maxLength: 20 } },
    required: ["city"],
    additionalProperties: false,
  },
};
const TOOLS = [{ type: "function", function: WEATHER }];
const PERSON = {
  type: "object",
  properties: {
    name: { type: "string", maxLength: 12 },
    age: { type: "integer", minimum: 0, maximum: 120 },
    tags: { type: "array", items: { enum: ["a", "b"] }, maxItems: 3 },
  },
  required: ["name", "age", "tags"],
  additionalProperties: false,
};

const user = (content) => [{ role: "user", content }];

function chat(text, fields = {}, options = {}) {
  const body = { model, temperature: 0, messages: user(text), ...QUIET, ...fields };
  return client.chat.completions.create(body, options);
}

async function refused(param, call, kind = OpenAI.BadRequestError) {
  const error = await call().then(
    () => assert.fail(`${param} was not refused`),
    (error) => error,
  );
  assert(error instanceof kind, `${error}`);
  assert(error.error.message.includes(param), error.error.message);
}

async function collected(stream) {
  const all = [];
  for await (const part of stream) all.push(part);
  return all;
}

const contentOf = (chunks, index = 0) =>
  chunks
    .flatMap((chunk) => chunk.choices)
    .filter((choice) => choice.index === index)
    .map((choice) => choice.delta.content ?? "")
    .join("");

const checks = {
  async "models are listed"() {
    const ids = (await collected(client.models.list())).map((one) => one.id);
    assert.deepEqual(ids, [model]);
    assert.equal((await client.models.retrieve(model)).id, model);
    await refused("other", () => client.models.retrieve("other"), OpenAI.NotFoundError);
  },

  async "an answer has usage and a fingerprint"() {
    const answer = await chat("49 + 34 = ?");
    assert.equal(answer.choices[0].message.content, "83");
    assert.equal(answer.choices[0].finish_reason, "stop");
    const { prompt_tokens, completion_tokens, total_tokens, completion_tokens_details } = answer.usage;
    assert.equal(total_tokens, prompt_tokens + completion_tokens);
    assert.equal(completion_tokens_details.reasoning_tokens, 0);
    assert(answer.system_fingerprint.startsWith("fp_"));
  },

  async "thinking is apart and counted"() {
    const answer = await chat("509 + 798 = ?", { chat_template_kwargs: {} });
    assert.equal(answer.choices[0].message.content, "1307");
    assert(answer.choices[0].message.reasoning_content.startsWith("ones"));
    assert(answer.usage.completion_tokens_details.reasoning_tokens > 10);
  },

  async "a stream is the answer"() {
    const whole = await chat(STORY);
    const chunks = await collected(await chat(STORY, { stream: true, stream_options: { include_usage: true } }));
    assert.equal(contentOf(chunks), whole.choices[0].message.content);
    const { usage } = chunks.at(-1);
    // Counts of cached and of guessed tokens depend on earlier questions.
    assert.equal(usage.prompt_tokens, whole.usage.prompt_tokens);
    assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  },

  async "the package's own runner puts a stream together"() {
    const whole = await chat(STORY);
    const runner = client.chat.completions.stream({ model, temperature: 0, messages: user(STORY), ...QUIET });
    assert.equal(await runner.finalContent(), whole.choices[0].message.content);
  },

  async "a stream that is aborted ends, and the hub answers on"() {
    const controller = new AbortController();
    const fields = { stream: true, ignore_eos: true, max_tokens: 1500 };
    const stream = await chat(STORY, fields, { signal: controller.signal });
    let n = 0;
    for await (const _ of stream) {
      n += 1;
      if (n === 5) controller.abort();
    }
    assert(n < 1000, `${n} chunks came`);
    assert.equal((await chat("49 + 34 = ?")).choices[0].message.content, "83");
  },

  async logprobs() {
    const told = (await chat("Count from 15 to 22.", { logprobs: true, top_logprobs: 4 })).choices[0];
    const tokens = told.logprobs.content;
    assert.equal(tokens.map((token) => token.token).join(""), told.message.content);
    assert(tokens.every((token) => token.top_logprobs.length === 4 && token.logprob <= 0));
    const bytes = Buffer.from(tokens.flatMap((token) => token.bytes));
    assert.equal(bytes.toString(), told.message.content);
    await refused("top_logprobs", () => chat("Hi", { logprobs: true, top_logprobs: 21 }));
  },

  async "several choices"() {
    const fields = { n: 3, temperature: 1.5, seed: 7, max_tokens: 20 };
    const texts = (await chat(STORY, fields)).choices.map((choice) => choice.message.content);
    assert.equal(texts.length, 3);
    assert(new Set(texts).size > 1, `${texts}`);
    const chunks = await collected(await chat(STORY, { stream: true, ...fields }));
    assert.deepEqual([0, 1, 2].map((index) => contentOf(chunks, index)), texts);
  },

  async "an answer keeps to a JSON schema"() {
    const response_format = { type: "json_schema", json_schema: { name: "person", schema: PERSON, strict: true } };
    for (let seed = 0; seed < 5; seed += 1) {
      const answer = await chat("Who is there?", { response_format, temperature: 1, seed, max_tokens: 300 });
      const person = JSON.parse(answer.choices[0].message.content);
      assert.deepEqual(Object.keys(person).sort(), ["age", "name", "tags"]);
      assert(person.age >= 0 && person.age <= 120);
    }
    const schema = { type: "array", uniqueItems: true };
    const bad = { type: "json_schema", json_schema: { name: "a", schema } };
    await refused("uniqueItems", () => chat("Hi", { response_format: bad }));
  },

  async "tools are called, and told what they gave"() {
    const question = "What is the weather in Dublin?";
    const call = (await chat(question, { tools: TOOLS })).choices[0];
    assert.equal(call.finish_reason, "tool_calls");
    const [{ id, function: called }] = call.message.tool_calls;
    assert.deepEqual(JSON.parse(called.arguments), { city: "Dublin" });
    const messages = [...user(question), call.message, { role: "tool", tool_call_id: id, content: "rain" }];
    assert.equal((await chat("", { messages, tools: TOOLS })).choices[0].finish_reason, "stop");
  },

  async "tools can be forced, and a stream calls the same"() {
    for (const tool_choice of ["required", { type: "function", function: { name: "get_weather" } }]) {
      const fields = { tools: TOOLS, tool_choice, parallel_tool_calls: false, max_tokens: 200 };
      const [call] = (await chat("What is 2 + 2?", fields)).choices[0].message.tool_calls;
      assert.deepEqual(Object.keys(JSON.parse(call.function.arguments)), ["city"]);
      const chunks = await collected(await chat("What is 2 + 2?", { stream: true, ...fields }));
      const streamed = chunks.flatMap((chunk) => chunk.choices[0]?.delta.tool_calls ?? []).map((part) => part.function);
      assert.deepEqual(streamed, [call.function]);
    }
    const silent = await chat("What is the weather in Dublin?", { tools: TOOLS, tool_choice: "none" });
    assert(!silent.choices[0].message.tool_calls);
  },

  async "a cut answer goes on"() {
    const whole = (await chat(STORY)).choices[0].message.content;
    const cut = (await chat(STORY, { max_tokens: 9 })).choices[0].message.content;
    const messages = [...user(STORY), { role: "assistant", content: cut }];
    const rest = await chat("", { messages, continue_final_message: true });
    assert.equal(cut + rest.choices[0].message.content, whole);
  },

  async "unknown fields are named and others refused"() {
    const asked = chat("Hi", { max_tokens: 1, something_new: 1 }, { headers: { "x-request-id": "mine" } });
    const { response } = await asked.withResponse();
    assert.equal(response.headers.get("x-moex-ignored"), "something_new");
    assert.equal(response.headers.get("x-request-id"), "mine");
    await refused("bad_words", () => chat("Hi", { bad_words: ["no"] }));
  },

  async completions() {
    const prompt = "Once there was";
    const complete = (fields) => client.completions.create({ model, prompt, temperature: 0, ...fields });
    const made = await complete();
    assert(made.usage.completion_tokens <= 16 && made.choices[0].text);
    assert.equal((await complete({ echo: true })).choices[0].text, prompt + made.choices[0].text);
    const fields = { prompt: ["One", "Two"], n: 2, temperature: 1, seed: 1, logprobs: 2 };
    const several = (await complete(fields)).choices;
    assert.deepEqual(several.map((choice) => choice.index), [0, 1, 2, 3]);
    assert.equal(several[0].logprobs.tokens.length, several[0].logprobs.token_logprobs.length);
    const chunks = await collected(await complete({ stream: true }));
    assert.equal(chunks.map((chunk) => chunk.choices[0].text).join(""), made.choices[0].text);
    await refused("suffix", () => complete({ suffix: "b" }));
  },

  async "an echoed prompt is told of, and nothing is written behind it"() {
    const made = await client.completions.create({ model, prompt: "Once there was", echo: true, logprobs: 1, max_tokens: 0 });
    const { text, logprobs, finish_reason } = made.choices[0];
    assert.deepEqual([text, logprobs.tokens.join(""), finish_reason], ["Once there was", "Once there was", "length"]);
    assert.equal(logprobs.token_logprobs[0], null);
    assert(logprobs.token_logprobs.slice(1).every((logprob) => logprob < 0));
    assert.equal(made.usage.completion_tokens, 0);
  },

  async responses() {
    const asked = { model, input: "509 + 798 = ?", temperature: 0 };
    const made = await client.responses.create(asked);
    assert.deepEqual([made.output_text, made.status], ["1307", "completed"]);
    assert(made.usage.output_tokens_details.reasoning_tokens > 10);
    const stream = client.responses.stream(asked);
    let text = "";
    for await (const event of stream) {
      if (event.type === "response.output_text.delta") text += event.delta;
    }
    assert.deepEqual([text, (await stream.finalResponse()).output_text], ["1307", "1307"]);
    const tools = [{ type: "function", strict: true, ...WEATHER }];
    const input = user("What is the weather in Dublin?");
    const called = await client.responses.create({ model, input, tools, temperature: 0, ...QUIET });
    const [call] = called.output.filter((item) => item.type === "function_call");
    assert.deepEqual(JSON.parse(call.arguments), { city: "Dublin" });
  },

  async "errors have their classes and OpenAI's fields"() {
    const unknown = () => chat("Hi", { model: "other" });
    await refused("other", unknown, OpenAI.NotFoundError);
    const error = await chat("Hi", { temperature: "hot" }).catch((error) => error);
    const { status, code, param, type } = error;
    assert.deepEqual([status, code, param, type], [400, "invalid_value", "temperature", "invalid_request_error"]);
    await refused("messages", () => chat("", { messages: [] }));
  },

  async "embeddings are refused"() {
    const embed = () => client.embeddings.create({ model, input: "a" });
    await refused("embedding", embed, OpenAI.InternalServerError);
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name}\n${error.stack}`);
  }
}
process.exit(failed > 0 ? 1 : 0);
