"""Tests the hub's API with the official Python package `openai`.

    openai_suite.py http://127.0.0.1:8080/v1 MODEL

Every function whose name begins with check_ is one check, named after the rule that it tests. Prints a line for each,
and ends with 1 if one fails. The demo model can answer the questions.
"""

import json
import sys
import traceback

import openai

STORY = "Tell me a story about a bear."
QUIET = {"chat_template_kwargs": {"enable_thinking": False}}
WEATHER = {
    "name": "get_weather",
    "description": "Get weather.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
TOOLS = [{"type": "function", "function": WEATHER}]
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


class Suite:
    def __init__(self, url, model):
        self.client = openai.OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
        self.model = model

    def chat(self, text, **fields):
        fields.setdefault("temperature", 0)
        fields.setdefault("extra_body", QUIET)
        messages = fields.pop("messages", [{"role": "user", "content": text}])
        return self.client.chat.completions.create(model=self.model, messages=messages, **fields)

    def refused(self, param, call, kind=openai.BadRequestError):
        try:
            call()
        except kind as error:
            assert param in error.body["message"], error.body
            return error
        raise AssertionError(f"{param} was not refused")

    def check_models_are_listed(self):
        assert [model.id for model in self.client.models.list()] == [self.model]
        assert self.client.models.retrieve(self.model).id == self.model
        self.refused("other", lambda: self.client.models.retrieve("other"), openai.NotFoundError)

    def check_an_answer_has_usage_and_a_fingerprint(self):
        answer = self.chat("49 + 34 = ?")
        assert answer.choices[0].message.content == "83"
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        assert answer.usage.completion_tokens_details.reasoning_tokens == 0
        assert answer.system_fingerprint.startswith("fp_")

    def check_thinking_is_apart_and_counted(self):
        answer = self.chat("509 + 798 = ?", extra_body={})
        assert answer.choices[0].message.content == "1307"
        assert answer.choices[0].message.reasoning_content.startswith("ones")
        assert answer.usage.completion_tokens_details.reasoning_tokens > 10

    def check_a_stream_is_the_answer(self):
        whole = self.chat(STORY)
        text, usage = "", None
        for chunk in self.chat(STORY, stream=True, stream_options={"include_usage": True}):
            usage = chunk.usage or usage
            text += "".join(choice.delta.content or "" for choice in chunk.choices)
        assert text == whole.choices[0].message.content
        # Counts of cached and of guessed tokens depend on earlier questions.
        assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)

    def check_logprobs(self):
        told = self.chat("Count from 15 to 22.", logprobs=True, top_logprobs=4).choices[0]
        tokens = told.logprobs.content
        assert "".join(token.token for token in tokens) == told.message.content
        assert all(len(token.top_logprobs) == 4 and token.logprob <= 0 for token in tokens)
        assert bytes(byte for token in tokens for byte in token.bytes).decode() == told.message.content
        self.refused("top_logprobs", lambda: self.chat("Hi", logprobs=True, top_logprobs=21))

    def check_several_choices(self):
        fields = {"n": 3, "temperature": 1.5, "seed": 7, "max_tokens": 20}
        texts = [choice.message.content for choice in self.chat(STORY, **fields).choices]
        assert len(texts) == 3 and len(set(texts)) > 1, texts
        streamed = ["", "", ""]
        for chunk in self.chat(STORY, stream=True, **fields):
            for choice in chunk.choices:
                streamed[choice.index] += choice.delta.content or ""
        assert streamed == texts

    def check_json_schema(self):
        schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}
        for seed in range(5):
            answer = self.chat("Who is there?", response_format=schema, temperature=1, seed=seed, max_tokens=300)
            person = json.loads(answer.choices[0].message.content)
            assert set(person) == {"name", "age", "tags"} and 0 <= person["age"] <= 120, person
        bad = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "array", "uniqueItems": True}}}
        self.refused("uniqueItems", lambda: self.chat("Hi", response_format=bad))

    def check_tools(self):
        call = self.chat("What is the weather in Dublin?", tools=TOOLS).choices[0]
        assert call.finish_reason == "tool_calls"
        assert json.loads(call.message.tool_calls[0].function.arguments) == {"city": "Dublin"}
        history = [
            {"role": "user", "content": "What is the weather in Dublin?"},
            call.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.message.tool_calls[0].id, "content": "rain"},
        ]
        assert self.chat("", messages=history, tools=TOOLS).choices[0].finish_reason == "stop"

    def check_tools_can_be_forced_and_a_stream_calls_the_same(self):
        for choice in ["required", {"type": "function", "function": {"name": "get_weather"}}]:
            fields = {"tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "max_tokens": 200}
            message = self.chat("What is 2 + 2?", **fields).choices[0].message
            [call] = message.tool_calls
            assert set(json.loads(call.function.arguments)) == {"city"}
            streamed = [
                part.function
                for chunk in self.chat("What is 2 + 2?", stream=True, **fields)
                for part in chunk.choices[0].delta.tool_calls or []
            ]
            assert [(f.name, f.arguments) for f in streamed] == [("get_weather", call.function.arguments)]
        silent = self.chat("What is the weather in Dublin?", tools=TOOLS, tool_choice="none")
        assert silent.choices[0].message.tool_calls is None

    def check_a_cut_answer_goes_on(self):
        whole = self.chat(STORY).choices[0].message.content
        cut = self.chat(STORY, max_tokens=9).choices[0].message.content
        messages = [{"role": "user", "content": STORY}, {"role": "assistant", "content": cut}]
        rest = self.chat("", messages=messages, extra_body={**QUIET, "continue_final_message": True})
        assert cut + rest.choices[0].message.content == whole

    def check_unknown_fields_are_named_and_others_refused(self):
        raw = self.client.chat.completions.with_raw_response.create(
            model=self.model,
            messages=[{"role": "user", "content": "Hi"}],
            max_tokens=1,
            extra_body={"something_new": 1},
            extra_headers={"x-request-id": "mine"},
        )
        assert raw.headers["x-moex-ignored"] == "something_new"
        assert raw.headers["x-request-id"] == "mine"
        self.refused("bad_words", lambda: self.chat("Hi", extra_body={"bad_words": ["no"]}))

    def check_completions(self):
        made = self.client.completions.create(model=self.model, prompt="Once there was", temperature=0)
        assert made.usage.completion_tokens <= 16 and made.choices[0].text
        echoed = self.client.completions.create(model=self.model, prompt="Once there was", temperature=0, echo=True)
        assert echoed.choices[0].text == "Once there was" + made.choices[0].text
        several = self.client.completions.create(
            model=self.model, prompt=["One", "Two"], n=2, temperature=1, seed=1, logprobs=2
        )
        assert [choice.index for choice in several.choices] == [0, 1, 2, 3]
        assert len(several.choices[0].logprobs.tokens) == len(several.choices[0].logprobs.token_logprobs)
        stream = self.client.completions.create(model=self.model, prompt="Once there was", temperature=0, stream=True)
        assert "".join(chunk.choices[0].text for chunk in stream) == made.choices[0].text
        self.refused("suffix", lambda: self.client.completions.create(model=self.model, prompt="a", suffix="b"))

    def check_an_echoed_prompt_is_told_of_and_nothing_is_written_behind_it(self):
        made = self.client.completions.create(
            model=self.model, prompt="Once there was", echo=True, logprobs=1, max_tokens=0
        )
        [choice] = made.choices
        assert (choice.text, "".join(choice.logprobs.tokens)) == ("Once there was", "Once there was")
        assert choice.logprobs.token_logprobs[0] is None
        assert all(logprob < 0 for logprob in choice.logprobs.token_logprobs[1:])
        assert (choice.finish_reason, made.usage.completion_tokens) == ("length", 0)

    def check_responses(self):
        made = self.client.responses.create(model=self.model, input="509 + 798 = ?", temperature=0)
        assert (made.output_text, made.status) == ("1307", "completed")
        assert made.usage.output_tokens_details.reasoning_tokens > 10
        text = ""
        with self.client.responses.stream(model=self.model, input="509 + 798 = ?", temperature=0) as stream:
            for event in stream:
                if event.type == "response.output_text.delta":
                    text += event.delta
            assert (text, stream.get_final_response().output_text) == ("1307", "1307")
        tools = [{"type": "function", "strict": True, **WEATHER}]
        question = [{"role": "user", "content": "What is the weather in Dublin?"}]
        called = self.client.responses.create(
            model=self.model, input=question, tools=tools, temperature=0, extra_body=QUIET
        )
        [call] = [item for item in called.output if item.type == "function_call"]
        assert json.loads(call.arguments) == {"city": "Dublin"}

    def check_embeddings_are_refused(self):
        embed = lambda: self.client.embeddings.create(model=self.model, input="a")
        self.refused("embedding", embed, openai.InternalServerError)


def main(url, model):
    suite = Suite(url, model)
    failed = 0
    for name in [name for name in dir(suite) if name.startswith("check_")]:
        try:
            getattr(suite, name)()
            print(f"ok {name.removeprefix('check_')}")
        except Exception:
            failed += 1
            print(f"FAILED {name.removeprefix('check_')}\n{traceback.format_exc()}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
