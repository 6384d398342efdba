//! `cargo xtask bench guess`: measures the gain of speculative decoding behind a delay, on repetitive text and on other
//! text, and compares the texts.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use comfy_table::Table;
use serde_json::{Value, json};

use super::median;
use super::stepped::Stepped;
use crate::chat;
use crate::hub::{Hub, Moex, Worker};
use crate::proxy::{Link, Proxy, Weather};

/// The command's arguments.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The checkpoint; default: the demo model.
    #[arg(long)]
    model: Option<PathBuf>,
    /// Round trips of the workers' links, milliseconds.
    #[arg(long, value_delimiter = ',', default_value = "2,10")]
    round_trips: Vec<u64>,
    /// Runs of each task, taking turns; the medians are compared.
    #[arg(short, long, default_value_t = 5)]
    runs: usize,
}

const N_WORKERS: usize = 3;

/// A task: its name, its question, the most tokens of its answer, and whether the answer is predicted except for one
/// word.
struct Task {
    name: &'static str,
    question: String,
    max_tokens: u32,
    predicted: bool,
}

fn tasks() -> Vec<Task> {
    let list = (10..42).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    let task = |name, question: &str, max_tokens, predicted| Task {
        name,
        question: question.to_owned(),
        max_tokens,
        predicted,
    };
    vec![
        task("copying", &format!("Copy: {list}"), 160, false),
        task("editing, predicted", "Tell me a story about a bear.", 96, true),
        task("prose", "Tell me a story about a bear.", 64, false),
        task("counting", "Count from 15 to 22.", 40, false),
    ]
}

/// Measures each task with and without guesses and prints a table.
pub(super) async fn run(moex: &Moex, args: &Args) -> Result<()> {
    let mut table = Table::new();
    table.set_header([
        "round trip ms",
        "task",
        "tok/s without",
        "tok/s with",
        "ratio",
        "guessed",
        "right",
        "rows a step",
        "ms a step without",
        "with",
    ]);
    for &round_trip in &args.round_trips {
        let (plain, _of_plain) = start(moex, args, round_trip, &["--no-guesses"]).await?;
        let (guessing, _of_guessing) = start(moex, args, round_trip, &[]).await?;
        for task in tasks() {
            let text = ask(&plain, &task, None).await?.text;
            // One word differs.
            let prediction = task.predicted.then(|| text.replacen("bear", "bird", 1));
            ask(&guessing, &task, prediction.as_deref()).await?;
            let (mut without, mut with) = (Vec::new(), Vec::new());
            let (mut guessed, mut right) = (0, 0);
            let before = [Stepped::of(&plain).await?, Stepped::of(&guessing).await?];
            for _ in 0..args.runs {
                let answer = ask(&plain, &task, None).await?;
                without.push(answer.rate);
                let other = ask(&guessing, &task, prediction.as_deref()).await?;
                ensure!(
                    other.text == answer.text,
                    "{}: {:?} is not {:?}",
                    task.name,
                    other.text,
                    answer.text
                );
                with.push(other.rate);
                (guessed, right) = (other.guessed, other.right);
            }
            let [plain_steps, steps] =
                [Stepped::of(&plain).await? - before[0], Stepped::of(&guessing).await? - before[1]];
            let (without, with) = (median(&mut without), median(&mut with));
            table.add_row([
                round_trip.to_string(),
                task.name.to_owned(),
                format!("{without:.1}"),
                format!("{with:.1}"),
                format!("{:.2}", with / without),
                guessed.to_string(),
                right.to_string(),
                format!("{:.1}", steps.width()),
                format!("{:.2}", 1e3 * plain_steps.seconds_a_step()),
                format!("{:.2}", 1e3 * steps.seconds_a_step()),
            ]);
        }
    }
    println!("{table}");
    Ok(())
}

async fn start(
    moex: &Moex,
    args: &Args,
    round_trip: u64,
    more: &[&str],
) -> Result<(Hub, Vec<(Proxy, Worker)>)> {
    let mut flags = vec!["--no-hub-compute", "--check-every", "0"];
    if let Some(model) = &args.model {
        flags.extend(["--model", model.to_str().context("a path that is text")?]);
    }
    flags.extend(more);
    let hub = moex.hub(&flags)?;
    let half = Weather { delay: Duration::from_micros(500 * round_trip), ..Weather::default() };
    let mut workers = Vec::new();
    for n in 0..N_WORKERS {
        let proxy = Proxy::start(hub.address()?, Link::Open).await?;
        let key = format!("{:032x}", n + 1);
        let worker =
            moex.worker(&format!("worker {n}"), &hub.join_url_by(proxy.address)?, &["--key", &key])?;
        workers.push((proxy, worker));
    }
    hub.wait_for_workers(N_WORKERS).await?;
    for (proxy, _) in &workers {
        proxy.set(Link::Shaped { up: half, down: half });
    }
    Ok((hub, workers))
}

struct Answer {
    text: String,
    /// Tokens a second, by the engine's clock.
    rate: f64,
    guessed: u64,
    right: u64,
}

async fn ask(hub: &Hub, task: &Task, prediction: Option<&str>) -> Result<Answer> {
    let mut body = json!({
        "messages": [{"role": "user", "content": task.question}],
        "temperature": 0, "max_tokens": task.max_tokens, "ignore_eos": true,
        "chat_template_kwargs": {"enable_thinking": false},
    });
    if let Some(prediction) = prediction {
        body["prediction"] = json!({"type": "content", "content": prediction});
    }
    let url = format!("{}/v1/chat/completions", hub.url);
    let answer: Value =
        chat::client()?.post(url).json(&body).send().await?.error_for_status()?.json().await?;
    let details = &answer["usage"]["completion_tokens_details"];
    let count = |name: &str| details[name].as_u64().with_context(|| format!("the usage tells {name}"));
    let right = count("accepted_prediction_tokens")?;
    Ok(Answer {
        text: answer["choices"][0]["message"]["content"].as_str().unwrap_or_default().to_owned(),
        rate: answer["timings"]["predicted_per_second"].as_f64().context("the answer tells its timings")?,
        guessed: right + count("rejected_prediction_tokens")?,
        right,
    })
}
