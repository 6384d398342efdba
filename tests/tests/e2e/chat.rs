//! `moex chat` as people use it: at a terminal, through a pipe, with the address that other clients need.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use moex_protocol::WorkerKey;
use moex_tests::host::Host;
use moex_tests::hub::{Hub, Moex};
use moex_tests::moex;
use moex_tests::peer::{Behaviour, Peer, PeerConfig};
use serde_json::Value;

use crate::{run, succeed};

#[test]
fn the_address_of_the_api_is_the_hubs_too() {
    let hub = Hub::start(&[]).unwrap();
    for url in [format!("{}/v1", hub.url), format!("{}/v1/", hub.url), format!("{}/", hub.url)] {
        let output = succeed(&["chat", "What is 9 x 11?", "--url", &url, "--temperature", "0"]);
        assert!(String::from_utf8(output.stdout).unwrap().contains("99"), "{url}");
    }
}

#[test]
fn a_pipe_is_asked_line_by_line() {
    let hub = Hub::start(&[]).unwrap();
    let mut chat = Command::new(moex())
        .args(["chat", "--url", &hub.url, "--temperature", "0", "--no-thinking"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    chat.stdin.take().unwrap().write_all(b"What is 9 x 11?\n\nWhat is 2 + 3?\n").unwrap();
    let output = chat.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && said.contains("99") && said.lines().count() == 2, "{said}");
}

#[test]
fn without_a_terminal_a_missing_key_is_one_sentence() {
    let hub = Hub::start(&["--api-key", "secret"]).unwrap();
    for (key, says) in [(None, "asks for its API key"), (Some("wrong"), "has another API key")] {
        let key = key.map(|key| ["--api-key", key]);
        let args = [&["chat", "hello", "--url", &hub.url][..], key.as_ref().map_or(&[][..], |key| &key[..])]
            .concat();
        let output = run(&args);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains(says) && said.contains("--api-key") && said.contains("MOEX_API_KEY"), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
}

#[test]
fn a_hub_on_https_is_trusted_by_its_fingerprint_or_its_file_and_not_without() {
    // This gives the machine an address that is not loopback.
    let (_host, state) = (Host::new().unwrap(), tempfile::tempdir().unwrap());
    let hub = Moex::under_test().keeping(state.path()).hub_at("0", &["--lan", "--https-port", "0"]).unwrap();
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let url = text(&hub.started["urls"][0]);
    let key = text(&hub.started["api_key"]);
    let (fingerprint, file) =
        (text(&hub.started["ca"]["fingerprint"]), text(&hub.started["ca"]["certificate"]));
    let args =
        ["chat", "What is 9 x 11?", "--temperature", "0", "--no-thinking", "--url", &url, "--api-key", &key];
    for trust in [["--fingerprint", &fingerprint], ["--ca", &file]] {
        let output = succeed(&[&args[..], &trust].concat());
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), "99");
    }
    let wrong = "00".repeat(32);
    for trust in [&[][..], &["--fingerprint", &wrong]] {
        let output = run(&[&args[..], trust].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            said.contains("is not trusted") && said.contains("--ca") && said.lines().count() == 1,
            "{said}"
        );
    }
}

/// Keys typed at a terminal, and the screen afterwards. The terminal is tmux's.
#[test]
fn a_person_edits_lines_stops_answers_and_is_asked_for_the_key() {
    let Some(terminal) = Terminal::open() else {
        eprintln!("SKIPPED: `moex chat` at a terminal was not tested: there is no tmux");
        return;
    };
    let hub = Hub::start(&["--api-key", "secret"]).unwrap();
    let state = tempfile::tempdir().unwrap();
    let command = format!(
        "XDG_STATE_HOME={} {} chat --temperature 0 --no-thinking --url {}/v1; echo ENDED=$?",
        state.path().display(),
        moex().display(),
        hub.url
    );
    terminal.keys(&[&command, "Enter"]);
    terminal.shows("API key:");
    terminal.keys(&["wrong", "Enter"]);
    terminal.shows("has another API key");
    terminal.keys(&["secret", "Enter"]);
    let screen = terminal.shows("/help lists the commands");
    assert!(!screen.contains("secret") && !screen.contains(": wrong"), "{screen}");

    terminal.keys(&["/help", "Enter"]);
    terminal.shows("/again");
    terminal.keys(&["/nonsense", "Enter"]);
    terminal.shows("no such command");
    // The cursor moves back, and a digit is inserted.
    terminal.keys(&["What is 9 x 1?", "Left", "1", "Enter"]);
    terminal.shows("99");
    terminal.shows("tokens/s)");
    terminal.keys(&["Up"]);
    terminal.shows("> What is 9 x 11?");
    terminal.keys(&["C-c"]);
    terminal.shows("press Ctrl-C again to end");

    terminal.keys(&["/exit", "Enter"]);
    terminal.shows("ENDED=0");

    let history = state.path().join("moex").join("chat-history");
    let lines = std::fs::read_to_string(&history).unwrap();
    assert!(lines.contains("What is 9 x 11?") && !lines.contains("secret"), "{lines}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&history), mode(history.parent().unwrap())), (0o600, 0o700));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ctrl_c_stops_an_answer_and_a_second_one_ends() {
    let Some(terminal) = Terminal::open() else {
        eprintln!("SKIPPED: `moex chat` at a terminal was not tested: there is no tmux");
        return;
    };
    // Its only worker answers nothing, so there is no answer without the interruption.
    let hub = Hub::start(&["--no-hub-compute", "--coverage-wait", "10m"]).unwrap();
    let mute = PeerConfig {
        key: WorkerKey(7),
        memory_budget_bytes: 1 << 30,
        teraflops: 1.0,
        behaviour: Behaviour::Mute,
        busy_poll: false,
        renames: false,
    };
    let _mute = Peer::start(&hub.join_url, mute).unwrap();
    hub.wait_for_workers(1).await.unwrap();
    let state = tempfile::tempdir().unwrap();
    let command = format!(
        "XDG_STATE_HOME={} {} chat --url {}; echo ENDED=$?",
        state.path().display(),
        moex().display(),
        hub.url
    );
    terminal.keys(&[&command, "Enter"]);
    terminal.shows("/help lists the commands");
    terminal.keys(&["What is 9 x 11?", "Enter"]);
    std::thread::sleep(Duration::from_secs(1));
    assert!(!terminal.shows("9 x 11").contains("stopped"));
    terminal.keys(&["C-c"]);
    let screen = terminal.shows("(stopped");
    assert!(!screen.contains("ENDED=0"), "{screen}");
    terminal.keys(&["C-c"]);
    terminal.shows("ENDED=0");
}

/// A terminal in tmux, ended when dropped.
struct Terminal {
    socket: String,
}

impl Terminal {
    /// `None` if there is no tmux.
    fn open() -> Option<Self> {
        static OPENED: AtomicU32 = AtomicU32::new(0);
        let n = OPENED.fetch_add(1, Ordering::Relaxed);
        let terminal = Self { socket: format!("moex-test-{}-{n}", std::process::id()) };
        let args = ["-f", "/dev/null", "new-session", "-d", "-x", "120", "-y", "50", "sh"];
        terminal.tmux(&args).map(|_| terminal)
    }

    fn keys(&self, keys: &[&str]) {
        for key in keys {
            // Names of keys are sent as keys, everything else as text.
            let named = ["Enter", "Left", "Up", "C-c"].contains(key);
            let literal = if named { &[][..] } else { &["-l"] };
            self.tmux(&[&["send-keys"][..], literal, &["--", key]].concat()).unwrap();
        }
    }

    /// Waits until the screen shows the text, and returns it.
    fn shows(&self, text: &str) -> String {
        let begin = Instant::now();
        loop {
            let screen = self.tmux(&["capture-pane", "-p"]).unwrap();
            if screen.contains(text) {
                return screen;
            }
            assert!(begin.elapsed() < moex_tests::hub::PATIENCE, "no {text:?} on the screen:\n{screen}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn tmux(&self, args: &[&str]) -> Option<String> {
        let output = Command::new("tmux").args(["-L", &self.socket]).args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.tmux(&["kill-server"]);
    }
}
