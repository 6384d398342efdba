//! `moex pull`, and `--model` by a name: a hub of models that stalls, disconnects, redirects, refuses and lies.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use moex_tests::hf_hub::{COMMIT, HfHub, HubRequest, Misbehaviour, REPO, RecordedRequest, etag};
use moex_tests::hub::PATIENCE;
use moex_tests::{data, moex};
use tempfile::TempDir;

const SHARD: &str = "model-00001-of-00003.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// `moex pull` does not read a GGUF, so any bytes will do.
const GGUF: &str = "Some-Model-Q4_0.gguf";

/// A user who downloads, with a separate cache.
struct User {
    home: TempDir,
    endpoint: String,
    variables: Vec<(&'static str, String)>,
}

impl User {
    fn of(hub: &HfHub) -> Self {
        Self { home: tempfile::tempdir().unwrap(), endpoint: hub.url.clone(), variables: Vec::new() }
    }

    fn with(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(moex());
        let of_others =
            ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE"];
        let proxies = ["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"];
        for name in of_others.iter().chain(&proxies) {
            command.env_remove(name);
        }
        command
            .env("HF_HOME", self.home.path())
            .env("HF_ENDPOINT", &self.endpoint)
            .env("HF_HUB_DOWNLOAD_TIMEOUT", "60")
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .args(args)
            .stdin(Stdio::null());
        command
    }

    fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Runs a command that must succeed; returns its stdout and stderr.
    fn succeed(&self, args: &[&str]) -> (String, String) {
        let output = self.run(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "moex {args:?} failed: {said}");
        (String::from_utf8(output.stdout).unwrap(), said)
    }

    /// The path that `moex pull NAME` prints.
    fn pull(&self, name: &str) -> PathBuf {
        let (path, _) = self.succeed(&["pull", name]);
        assert_eq!(path.lines().count(), 1, "{path}");
        path.trim_end().into()
    }

    /// Runs a command that must fail; returns the last line of its output, its one sentence.
    fn fail(&self, args: &[&str]) -> String {
        let output = self.run(args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "moex {args:?} said: {said}");
        assert!(output.stdout.is_empty() && !said.contains("panicked"), "moex {args:?} said: {said}");
        let sentences = said.lines().filter(|line| line.starts_with("moex: ")).count();
        assert_eq!(sentences, 1, "{said}");
        said.lines().last().unwrap().to_owned()
    }

    fn repo(&self) -> PathBuf {
        self.home.path().join("hub").join("models--some-owner--Some-Model")
    }

    /// The names among the blobs.
    fn blobs(&self) -> BTreeSet<String> {
        let Ok(blobs) = fs::read_dir(self.repo().join("blobs")) else { return BTreeSet::new() };
        blobs.map(|blob| blob.unwrap().file_name().into_string().unwrap()).collect()
    }
}

/// The tiny model in shards, and unneeded files.
fn folder() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(data("tiny-qwen3-moe/sharded"))
        .unwrap()
        .map(|file| file.unwrap())
        .map(|file| (file.file_name().into_string().unwrap(), fs::read(file.path()).unwrap()))
        .collect();
    for unneeded in ["README.md", "pytorch_model.bin", "original/consolidated.00.pth", "other.safetensors"] {
        files.push((unneeded.to_owned(), vec![7; 5000]));
    }
    files
}

/// Three thousand bytes, in which all pairs differ.
fn bytes() -> Vec<u8> {
    (0_u16..1500).flat_map(u16::to_le_bytes).collect()
}

fn gguf_hub() -> HfHub {
    HfHub::start([(GGUF.to_owned(), bytes())], &[]).unwrap()
}

fn gguf() -> String {
    format!("{REPO}/{GGUF}")
}

/// Pulls the GGUF, which must arrive complete; returns the requested ranges and the printed text.
fn pull_gguf(hub: &HfHub, user: &User) -> (Vec<Option<String>>, String) {
    let (path, said) = user.succeed(&["pull", &gguf()]);
    assert!(fs::read(path.trim_end()).unwrap() == bytes(), "the file is another one");
    assert_eq!(user.blobs(), BTreeSet::from([etag(&bytes())]), "nothing else is left");
    let of_bytes = |asked: &RecordedRequest| !asked.by_hub && asked.method == "GET";
    (hub.asked().into_iter().filter(of_bytes).map(|asked| asked.range).collect(), said)
}

#[test]
fn a_folder_lies_in_the_cache_and_needs_no_hub_any_more() {
    let hub = HfHub::start(folder(), &[]).unwrap();
    let user = User::of(&hub).with("HF_TOKEN", "hf_secret");
    let path = user.pull(REPO);
    assert_eq!(path, user.repo().join("snapshots").join(COMMIT));
    for (name, bytes) in folder() {
        if ["README.md", "pytorch_model.bin", "other.safetensors"].contains(&name.as_str())
            || name.contains('/')
        {
            assert!(!path.join(&name).exists(), "{name} is not needed");
            continue;
        }
        assert_eq!(fs::read(path.join(&name)).unwrap(), bytes, "{name}");
        #[cfg(unix)]
        {
            let target = Path::new("../../blobs").join(etag(&bytes));
            assert_eq!(fs::read_link(path.join(&name)).unwrap(), target, "{name}");
        }
    }
    assert_eq!(fs::read_to_string(user.repo().join("refs/main")).unwrap(), COMMIT);
    // Every request to the hub carries the token, and no other request does.
    for asked in hub.asked() {
        let token = asked.by_hub.then(|| "Bearer hf_secret".to_owned());
        assert_eq!(asked.token, token, "{asked:?}");
    }
    assert!(hub.asked().iter().any(|asked| !asked.by_hub));

    let n_asked = hub.asked().len();
    let (info, said) = user.succeed(&["info", "--json", "--model", REPO]);
    assert!(info.contains(r#""name":"Some-Model""#) && said.is_empty(), "{info} {said}");
    user.succeed(&["info", "--model", &format!("{REPO}:{COMMIT}")]);
    assert_eq!(hub.asked().len(), n_asked, "all of it was there");
    let (again, said) = user.succeed(&["pull", REPO, "--revision", "main"]);
    assert_eq!((Path::new(again.trim_end()), said.as_str()), (path.as_path(), ""));
    assert_eq!(hub.asked().len(), n_asked + 1, "one question: whether it is still that commit");
}

#[test]
fn a_model_by_its_name_is_downloaded_when_it_is_first_needed() {
    let hub = HfHub::start(folder(), &[]).unwrap();
    let user = User::of(&hub);
    let (info, said) = user.succeed(&["info", "--model", &format!("{REPO}:some/branch")]);
    assert!(
        info.contains("Some-Model: ") && said.contains("Downloading") && said.contains("127.0.0.1"),
        "{said}"
    );
    assert_eq!(fs::read_to_string(user.repo().join("refs/some/branch")).unwrap(), COMMIT);
    assert!(hub.asked()[0].path.ends_with("/revision/some%2Fbranch"));
    assert!(hub.asked().iter().all(|asked| asked.token.is_none()));
}

#[test]
fn what_stalls_breaks_off_or_knows_no_ranges_arrives_all_the_same() {
    let hub = gguf_hub();
    // Short enough to wait for twice, long enough for a slow machine.
    let user = User::of(&hub).with("HF_HUB_DOWNLOAD_TIMEOUT", "4");
    for trick in [
        Misbehaviour::CutAt(1000),
        Misbehaviour::StallAt(500),
        Misbehaviour::StallAt(0),
        Misbehaviour::IgnoreRange,
    ] {
        hub.once(HubRequest::Bytes(GGUF), trick);
    }
    let (ranges, said) = pull_gguf(&hub, &user);
    let range = |start: usize| Some(format!("bytes={start}-"));
    assert_eq!(ranges, [None, range(1000), range(1500), range(1500)]);
    assert!(said.contains("127.0.0.1 sent nothing for 4 s, trying again"), "{said}");
    assert!(said.contains("was lost"), "{said}");
}

#[test]
fn a_download_that_was_ended_goes_on_where_it_stopped() {
    let hub = gguf_hub();
    let user = User::of(&hub);
    hub.once(HubRequest::Bytes(GGUF), Misbehaviour::StallAt(1234));
    let mut ended = user.command(&["pull", &gguf()]).stderr(Stdio::null()).spawn().unwrap();
    let incomplete = user.repo().join("blobs").join(format!("{}.incomplete", etag(&bytes())));
    let begin = Instant::now();
    while fs::metadata(&incomplete).map_or(0, |file| file.len()) < 1234 {
        assert!(begin.elapsed() < PATIENCE, "nothing comes");
        std::thread::sleep(Duration::from_millis(20));
    }
    ended.kill().unwrap();
    ended.wait().unwrap();
    let (ranges, said) = pull_gguf(&hub, &user);
    assert_eq!(ranges, [None, Some("bytes=1234-".to_owned())]);
    assert!(said.contains("Downloaded 1.72 KiB"), "{said}");
}

#[test]
fn what_an_earlier_run_left_wrong_is_downloaded_anew() {
    let hub = gguf_hub();
    for left in [vec![0; 1000], vec![0; 3000], vec![0; 4000]] {
        let user = User::of(&hub);
        let blobs = user.repo().join("blobs");
        fs::create_dir_all(&blobs).unwrap();
        fs::write(blobs.join(format!("{}.incomplete", etag(&bytes()))), left).unwrap();
        pull_gguf(&hub, &user);
    }
}

#[test]
fn lies_are_one_sentence_and_leave_nothing() {
    let lies = [
        (Misbehaviour::Length(2999), "length has changed"),
        (Misbehaviour::Length(1 << 20), "length has changed"),
        (Misbehaviour::More, "more bytes"),
        (Misbehaviour::Wrong, "another hash"),
        (Misbehaviour::Status(204, &[]), "status 204"),
    ];
    for (lie, says) in lies {
        let hub = gguf_hub();
        let user = User::of(&hub);
        hub.once(HubRequest::Bytes(GGUF), lie.clone());
        let said = user.fail(&["pull", &gguf()]);
        assert!(said.contains(GGUF) && said.contains(says) && said.contains("removed"), "{lie:?}: {said}");
        assert_eq!(user.blobs(), BTreeSet::new(), "{lie:?}");
        assert!(!user.repo().join("snapshots").join(COMMIT).join(GGUF).exists(), "{lie:?}");
        pull_gguf(&hub, &user);
    }
    // Also for small files, whose hash is git's.
    let hub = HfHub::start(folder(), &[]).unwrap();
    let user = User::of(&hub);
    hub.once(HubRequest::Bytes("config.json"), Misbehaviour::Wrong);
    let said = user.fail(&["pull", REPO]);
    assert!(said.contains("config.json") && said.contains("another hash"), "{said}");
    assert!(user.fail(&["info", "--model", "some-owner/Other-Model"]).contains("has no model"));
}

/// A request, the status and headers of its refusal, the user's token, and the names in the sentence.
type Refusal<'a> =
    (&'a HubRequest, u16, &'static [(&'static str, &'static str)], Option<&'a str>, &'a [&'a str]);

#[test]
fn refusals_say_what_to_do() {
    let gated: &[(&str, &str)] = &[("X-Error-Code", "GatedRepo")];
    let no_revision: &[(&str, &str)] = &[("X-Error-Code", "RevisionNotFound")];
    let hour: &[(&str, &str)] = &[("Retry-After", "3600")];
    let (list, file) = (HubRequest::Files, HubRequest::Describe(GGUF));
    let cases: [Refusal<'_>; 10] = [
        (&list, 401, &[], None, &["has no model some-owner/Some-Model", "HF_TOKEN"]),
        (&list, 401, &[], Some("hf_old"), &["refuses the token in HF_TOKEN"]),
        (&list, 403, &[], Some("hf_x"), &["is gated", "accept its terms at http://127.0.0.1"]),
        (&file, 401, gated, None, &["is gated", "accept its terms", "set HF_TOKEN"]),
        (&list, 404, &[], Some("hf_x"), &["has no model", "your token"]),
        (&list, 404, no_revision, None, &["no revision main"]),
        (&file, 404, &[], None, &["has no file", GGUF]),
        (&list, 429, hour, None, &["429 (Too Many Requests)", "later"]),
        (&list, 500, &[], None, &["500 (Internal Server Error)", "later"]),
        (&list, 418, &[], None, &["418", "HF_ENDPOINT"]),
    ];
    for (question, status, headers, token, names) in cases {
        let hub = gguf_hub();
        let mut user = User::of(&hub);
        if let Some(token) = token {
            user = user.with("HF_TOKEN", token);
        }
        hub.always(question.clone(), Misbehaviour::Status(status, headers));
        let said = user.fail(&["pull", &gguf()]);
        for name in names {
            assert!(said.contains(name), "{status} should say {name:?}: {said}");
        }
        assert!(!said.contains("hf_"), "the token is printed: {said}");
    }
    // For a name that could have been a path, the sentence mentions both.
    let hub = gguf_hub();
    hub.always(HubRequest::Files, Misbehaviour::Status(404, &[]));
    let said = User::of(&hub).fail(&["info", "--model", REPO]);
    assert!(said.contains("is not a file or folder here") && said.contains("has no model"), "{said}");
    let said = User::of(&hub).fail(&["info", "--model", "/no/such/model"]);
    assert!(
        said.contains("is neither a file or folder here nor a model's name") && said.contains("OWNER/REPO"),
        "{said}"
    );
}

#[test]
fn what_passes_is_waited_for() {
    let hub = gguf_hub();
    let user = User::of(&hub);
    hub.once(HubRequest::Files, Misbehaviour::Status(429, &[("Retry-After", "1")]));
    hub.once(HubRequest::Files, Misbehaviour::Status(503, &[]));
    hub.once(HubRequest::Describe(GGUF), Misbehaviour::Status(500, &[]));
    // A signature that has expired.
    hub.once(HubRequest::Bytes(GGUF), Misbehaviour::Status(403, &[]));
    hub.once(HubRequest::Bytes(GGUF), Misbehaviour::CutAt(100));
    hub.once(HubRequest::Bytes(GGUF), Misbehaviour::Status(416, &[]));
    let begin = Instant::now();
    let (ranges, _) = pull_gguf(&hub, &user);
    assert!(begin.elapsed() >= Duration::from_secs(1));
    assert_eq!(ranges, [None, None, Some("bytes=100-".to_owned()), None]);
}

#[test]
fn no_hub_and_what_is_none_are_one_sentence() {
    let hub = gguf_hub();
    let nobody = User { endpoint: "http://127.0.0.1:1".to_owned(), ..User::of(&hub) };
    let said = nobody.fail(&["pull", REPO]);
    assert!(said.contains("127.0.0.1 cannot be reached") && said.contains("HF_ENDPOINT"), "{said}");
    let wrong = User { endpoint: "huggingface.co".to_owned(), ..User::of(&hub) };
    assert!(wrong.fail(&["pull", REPO]).contains("HF_ENDPOINT cannot be used"));
    for (trick, says) in [
        (Misbehaviour::Redirect(format!("/api/models/{REPO}/revision/round")), "more than 10 times"),
        (Misbehaviour::Redirect("file:///etc/passwd".to_owned()), "redirects without a valid URL"),
        (Misbehaviour::Status(200, &[]), "its list of files is invalid"),
    ] {
        let hub = gguf_hub();
        hub.always(HubRequest::Files, trick);
        let said = User::of(&hub).fail(&["pull", REPO]);
        assert!(said.contains("does not answer like a Hugging Face hub") && said.contains(says), "{said}");
    }
    hub.always(HubRequest::Describe(GGUF), Misbehaviour::Status(200, &[("Content-Length", "0")]));
    assert!(User::of(&hub).fail(&["pull", &gguf()]).contains("does not say the hash"));
}

#[test]
fn names_that_lead_out_of_the_folder_are_refused() {
    for name in ["../x", "/etc/x", "tokenizer/../../../x"] {
        let hub = HfHub::start(folder(), &[name]).unwrap();
        let user = User::of(&hub);
        let said = user.fail(&["pull", REPO]);
        assert!(said.contains(name) && said.contains("outside"), "{said}");
        assert_eq!(user.blobs(), BTreeSet::new());
    }
    let index = br#"{"weight_map": {"a": "../../../../outside.safetensors"}}"#.to_vec();
    let others = folder().into_iter().filter(|(name, _)| name != INDEX);
    let hub = HfHub::start(others.chain([(INDEX.to_owned(), index)]), &[]).unwrap();
    let user = User::of(&hub);
    let said = user.fail(&["pull", REPO]);
    assert!(said.contains("outside.safetensors") && said.contains("nothing of it is written"), "{said}");
    for name in ["../x", "a/../x.gguf", "a/b:../x", "a/b/../x.gguf"] {
        let output = user.run(&["pull", name]);
        assert_eq!(output.status.code(), Some(2), "{name}");
    }
}

#[test]
fn a_gguf_comes_with_all_its_parts_and_a_repository_of_them_asks_which() {
    let part = |n: u8| (format!("Q8_0/Some-Model-0000{n}-of-00002.gguf"), vec![n; 2000]);
    let hub = HfHub::start([part(1), part(2), (GGUF.to_owned(), bytes())], &[]).unwrap();
    let user = User::of(&hub);
    let said = user.fail(&["pull", REPO]);
    assert!(said.contains(GGUF) && said.contains(&part(1).0) && !said.contains(&part(2).0), "{said}");
    let said = user.fail(&["pull", &format!("{REPO}/Other.gguf")]);
    assert!(said.contains("no file Other.gguf") && said.contains(GGUF), "{said}");
    let path = user.pull(&format!("{REPO}/{}", part(2).0));
    for n in [1, 2] {
        let (name, bytes) = part(n);
        assert_eq!(fs::read(user.repo().join("snapshots").join(COMMIT).join(&name)).unwrap(), bytes);
        assert_eq!(path.ends_with(&name), n == 1);
    }
    assert_eq!(hub.n_sent(GGUF), 0, "nobody asked for it");
}

#[test]
fn two_that_pull_at_once_download_each_file_once() {
    let hub = HfHub::start(folder(), &[]).unwrap();
    let user = User::of(&hub).with("HF_HUB_DOWNLOAD_TIMEOUT", "3");
    // The first one locks a shard until it loses patience, while the second one starts.
    hub.once(HubRequest::Bytes(SHARD), Misbehaviour::StallAt(1000));
    let pulls: Vec<_> = (0..2)
        .map(|_| {
            let mut command = user.command(&["pull", REPO]);
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let outputs: Vec<Output> = pulls.into_iter().map(|pull| pull.wait_with_output().unwrap()).collect();
    for output in &outputs {
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(output.stdout, outputs[0].stdout);
    }
    let said: String = outputs.iter().map(|output| String::from_utf8_lossy(&output.stderr)).collect();
    assert!(said.contains("another process is downloading it"), "{said}");
    for (name, bytes) in folder().iter().filter(|(name, _)| name.starts_with("model-")) {
        let once = if name == SHARD { 2 } else { 1 };
        assert_eq!(hub.n_sent(name), once, "{name}");
        assert_eq!(&fs::read(user.repo().join("blobs").join(etag(bytes))).unwrap(), bytes);
    }
    assert!(user.blobs().iter().all(|name| !name.ends_with(".incomplete")), "{:?}", user.blobs());
}

/// Files that other tools have downloaded, in their layout.
#[cfg(unix)]
#[test]
fn what_other_tools_have_downloaded_is_found_offline() {
    let hub = gguf_hub();
    let user = User::of(&hub).with("HF_HUB_OFFLINE", "1");
    let said = user.fail(&["pull", REPO]);
    assert!(said.contains("HF_HUB_OFFLINE") && said.contains("unset it"), "{said}");
    let snapshot = user.repo().join("snapshots").join(COMMIT);
    for folder in [user.repo().join("blobs"), user.repo().join("refs"), snapshot.clone()] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::write(user.repo().join("refs/main"), COMMIT).unwrap();
    let mut files = folder();
    files.retain(|(name, _)| !name.contains('/'));
    files.sort_by_key(|(name, _)| name == SHARD);
    for (name, bytes) in files {
        // The last shard is missing: a model needs all of its files.
        assert!(user.fail(&["info", "--model", REPO]).contains("or not all of it"), "before {name}");
        fs::write(user.repo().join("blobs").join(etag(&bytes)), &bytes).unwrap();
        std::os::unix::fs::symlink(Path::new("../../blobs").join(etag(&bytes)), snapshot.join(&name))
            .unwrap();
    }
    assert_eq!(user.pull(REPO), snapshot);
    let (info, said) = user.succeed(&["info", "--model", REPO]);
    assert!(info.contains("Some-Model: ") && said.is_empty(), "{said}");
    assert!(hub.asked().is_empty(), "nobody was asked");
}
