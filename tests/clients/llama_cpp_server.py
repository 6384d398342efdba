"""A pytest plugin that runs the tests of llama.cpp's server against hubs of moex.

Each test starts its own hub, as it would start its own llama-server. Tests that do not apply are listed in
llama_cpp_server.txt with the reason, and are deselected. Deliberate differences that the tests are not about are
translated:

* their server accepts every model name, ours only its own: bodies get that name;
* their server answers without /v1 too;
* their model does not think, but the demo model does: chats that do not mention thinking turn it off.
"""

import collections
import json
import os
import pathlib
import subprocess
import tempfile

import openai
import utils

MODEL = "moex-demo"
REASONS = pathlib.Path(__file__).with_suffix(".txt")
# Their paths without /v1 become ours with it. Their bare /completions has its own shape, which no applicable test uses.
BARE = ["/chat/completions", "/completions", "/models", "/responses", "/embeddings"]


def ours(path):
    return "/v1" + path if any(path.startswith(bare) for bare in BARE) else path


def told(path, body):
    if not isinstance(body, dict):
        return body
    body = {**body, "model": MODEL} if "model" in body else body
    if "chat/completions" in path and "chat_template_kwargs" not in body:
        body = {**body, "chat_template_kwargs": {"enable_thinking": False}}
    return body


class Hub(utils.ServerProcess):
    def start(self, timeout_seconds=60):
        self.state = tempfile.TemporaryDirectory()
        args = [os.environ["MOEX"], "serve", "--json", "--listen", "127.0.0.1:0", "--no-mdns"]
        args += ["--api-key", self.api_key] if self.api_key else []
        args += ["--context", str(self.n_ctx // self.n_slots)] if self.n_ctx and self.n_ctx // self.n_slots < 2048 else []
        env = {**os.environ, "MOEX_STATE": self.state.name}
        self.process = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env)
        utils.server_instances.add(self)
        self.server_port = int(json.loads(self.process.stdout.readline())["listen"].rpartition(":")[2])
        self.model_alias = MODEL
        deadline = utils.time.time() + timeout_seconds
        while utils.requests.get(self.make_url("/health"), timeout=timeout_seconds).status_code != 200:
            assert utils.time.time() < deadline, "the hub does not get ready"
            utils.time.sleep(0.05)

    def make_request(self, method, path, data=None, *args, **fields):
        return super().make_request(method, ours(path), told(path, data), *args, **fields)

    def make_stream_request(self, method, path, data=None, *args, **fields):
        return super().make_stream_request(method, ours(path), told(path, data), *args, **fields)


def post(self, path, *, body=None, **fields):
    bare = "/v1" not in str(self.base_url)
    return asked(self, "/v1" + path if bare else path, body=told(path, body), **fields)


asked = openai.OpenAI.post
openai.OpenAI.post = post
utils.ServerProcess = Hub
# Nothing is downloaded.
utils.ServerPreset.load_all = staticmethod(lambda: None)


def reasons():
    lines = (line.split("#")[0].strip() for line in REASONS.read_text().splitlines())
    return dict(map(str.strip, line.split("|", 1)) for line in lines if line)


def pytest_collection_modifyitems(config, items):
    listed, kept, left = reasons(), [], collections.Counter()
    for item in items:
        test = item.nodeid.removeprefix("unit/")
        why = next((listed[name] for name in (test, test.split("[")[0], test.split("::")[0]) if name in listed), None)
        if why is None:
            kept.append(item)
        else:
            left[why] += 1
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    config.left = left
    items[:] = kept


def pytest_terminal_summary(terminalreporter, config):
    n_passed = len(terminalreporter.stats.get("passed", []))
    n_failed = sum(len(terminalreporter.stats.get(kind, [])) for kind in ("failed", "error"))
    for why, n in config.left.most_common():
        terminalreporter.write_line(f"{n:4} do not apply: {why}")
    terminalreporter.write_line(f"{n_passed} of {n_passed + n_failed} that apply pass; {sum(config.left.values())} do not apply")
