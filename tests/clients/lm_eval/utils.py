"""The data and the metric of these lm-eval tasks: the questions of `moex eval`, and its rule for right answers."""

import json
import pathlib

from datasets import Dataset
from tokenizers import Tokenizer

ROOT = pathlib.Path(__file__).resolve().parents[3]
CASES = ROOT / "tests/data/demo-cases.jsonl"
TOKENIZER = Tokenizer.from_file(str(ROOT / "hub/model/demo-model/tokenizer.json"))


def _text(ids):
    text = TOKENIZER.decode(ids, skip_special_tokens=False)
    assert TOKENIZER.encode(text, add_special_tokens=False).ids == ids, f"other tokens make {text!r}"
    return text


def _docs(keep):
    cases = [json.loads(line) for line in CASES.read_text().splitlines()]
    return {"test": Dataset.from_list([_doc(case) for case in cases if keep(case)])}


def _doc(case):
    return {
        "task": case["task"],
        "answer": case["answer"],
        "prompt": _text(case["prompt_ids"]),
        "reference": _text(case["reference_ids"]),
        "question": case["messages"][-1]["content"],
    }


def every_case(**_):
    return _docs(lambda case: True)


def _is_one_question(case):
    return len(case["messages"]) == 1 and not case["tools"]


def questions(**_):
    return _docs(lambda case: _is_one_question(case) and not case["enable_thinking"])


def thought_about(**_):
    return _docs(lambda case: _is_one_question(case) and case["enable_thinking"])


def _after_thoughts(text):
    return text.rpartition("</think>")[2].strip()


def is_right(doc, results):
    """As `moex eval` counts (hub/src/commands/eval/cases.rs): the answer itself; for a story, its beginning and its
    end."""
    said, answer = _after_thoughts(results[0]), _after_thoughts(doc["answer"])
    right = said == answer
    if doc["task"] == "story":
        said, answer = said.split(), answer.split()
        right = len(said) >= 7 and said[:5] == answer[:5] and said[-2:] == answer[-2:]
    return {"right": float(right)}
