"""schemathesis' check that requests that match the schema are accepted, except for rules that a schema cannot express.

schemathesis counts every 400 for such a request as a failure. Here, a 400 must match one of these messages, each listed
with the reason why /openapi.json cannot rule the request out.
"""

import re

import schemathesis

UNSAID = {
    r"may be given only when|cannot be used with": "what one field may be depends on another",
    r'"add_generation_prompt"|"continue_final_message"': "what one field may be depends on another",
    r'"tool_choice" (is "required", but|names)': "what one field may be depends on another",
    r'"prompt" and "n" together': "what one field may be depends on another",
    r"is not in the vocabulary|must be a list of token ids, not \d+": "the vocabulary is the model's",
    r"context holds|context of \d+ tokens": "only the tokenizer determines a text's number of tokens",
    r"chat template": "which conversations make a prompt is the model's template's to say",
    r"messages make no prompt": "which conversations make a prompt is the model's template's to say",
    r"cannot be (enforced|kept to)|schema": "only the grammar determines which schemas can be enforced",
    r"must be 1 to \d+ bytes": "a schema counts characters",
    r'"input" is empty': "a thought without text is an item, but has no content",
    r"must be a whole number .*, not \d{16,}\.\d+": "above 2^51 the generator takes fractions for whole numbers",
}


@schemathesis.check
def accepted_but_for_what_a_schema_cannot_say(ctx, response, case):
    if response.status_code != 400 or case.meta is None or not case.meta.generation.mode.is_positive:
        return
    message = response.json()["error"]["message"]
    if not any(re.search(pattern, message) for pattern in UNSAID):
        raise AssertionError(f"The schema allows what is refused: {message}")
