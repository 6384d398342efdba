//! `moex eval`: counts right answers to a file of cases.

mod cases;

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    path::PathBuf,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
};

use anyhow::{Context, bail};
use cases::Case;
use indicatif::{ProgressBar, ProgressStyle};
use moex_kernels::engine::ActivationFormat;
use serde::Serialize;

use super::compute::{ComputeArgs, DeviceArgs};
use super::experts::{ExpertArgs, ModelArgs, describe, experts_for};
use moex_engine::{EngineConfig, Event, Request, Scheduler};
use moex_model::text::{ChatInput, Text};
use moex_model::{Experts, Model};

/// Maximum tokens of an answer.
const MAX_TOKENS: u32 = 200;

/// Answers the cases of a file greedily and counts exact matches.
#[derive(clap::Args, Debug)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,

    #[command(flatten)]
    experts: ExpertArgs,

    #[command(flatten)]
    compute: ComputeArgs,

    #[command(flatten)]
    device: DeviceArgs,

    /// File with one JSON object per line: id, task, messages, tools, enable_thinking, answer.
    #[arg(long, env = "MOEX_CASES", value_name = "FILE")]
    cases: PathBuf,

    /// Print one JSON object: cases, right, tasks, and the text of each case.
    #[arg(long, env = "MOEX_JSON")]
    json: bool,
}

/// Runs the command.
pub fn run(args: Args) -> anyhow::Result<()> {
    let cases = cases::read(&args.cases)?;
    let checkpoint = args.model.checkpoint()?;
    let compute =
        args.device.compute(&args.compute, ActivationFormat::Int8, args.experts.workers.is_some())?;
    let model = Arc::new(Model::load_for(&checkpoint, &compute)?);
    let text = Arc::new(Text::load(&checkpoint)?);
    eprintln!("{}", describe(&args.experts, &model));
    let mut experts = experts_for(
        &args.experts,
        args.device.wish(),
        &checkpoint,
        &model,
        EngineConfig::default().max_rows,
    )?;

    let progress = ProgressBar::new(cases.len() as u64);
    let style = ProgressStyle::with_template("answering [{bar:20}] {pos} of {len}, {eta} left")?;
    progress.set_style(style);
    let report = answer(model, text, &mut *experts, &cases, &progress)?;
    progress.finish_and_clear();

    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print!("{}", report.table());
    }
    Ok(())
}

/// Results of all cases.
#[derive(Debug, Serialize)]
struct Report {
    cases: usize,
    right: usize,
    /// Right answers and cases, by task.
    tasks: BTreeMap<String, [usize; 2]>,
    results: Vec<Answer>,
}

#[derive(Debug, Serialize)]
struct Answer {
    id: serde_json::Value,
    text: String,
    right: bool,
    /// Smallest gap between the best two logits of any drawn token.
    min_margin: f32,
}

/// Answers all cases, as many at a time as fit in a step.
fn answer(
    model: Arc<Model>,
    text: Arc<Text>,
    experts: &mut dyn Experts,
    cases: &[Case],
    progress: &ProgressBar,
) -> anyhow::Result<Report> {
    let mut scheduler = Scheduler::new(model, text.clone(), EngineConfig::default());
    let (mut waiting, mut under_way) = (cases.iter().enumerate(), Vec::new());
    let mut texts: Vec<(String, f32)> = vec![(String::new(), f32::INFINITY); cases.len()];
    loop {
        while scheduler.has_room()
            && let Some((index, case)) = waiting.next()
        {
            let events = submit(&mut scheduler, &text, case).with_context(|| format!("case {}", case.id))?;
            under_way.push((index, events));
        }
        if scheduler.is_idle() {
            return Ok(Report::of(cases, texts));
        }
        scheduler.step(experts);
        for (index, events) in &under_way {
            for event in events.try_iter() {
                match event {
                    Event::Text(piece) => texts[*index].0.push_str(&piece),
                    Event::Finished(finish) => {
                        texts[*index].1 = finish.min_margin;
                        progress.inc(1);
                    }
                    Event::Failed(failure) => bail!("case {}: {failure}", cases[*index].id),
                    Event::Prompt { .. } | Event::PromptLogprobs(_) | Event::Logprobs(_) => {}
                }
            }
        }
    }
}

fn submit(scheduler: &mut Scheduler, text: &Text, case: &Case) -> anyhow::Result<Receiver<Event>> {
    let variables = case.variables();
    let prompt_ids = text.prompt(&ChatInput {
        messages: &case.messages,
        tools: case.tools.as_deref(),
        generation_prompt: true,
        variables: &variables,
        unix_seconds: 0,
    })?;
    let request = Request { prompt_ids, max_tokens: Some(MAX_TOKENS), ..Request::default() };
    // Drained after every step, so it holds the events of one step.
    let (sender, events) = channel();
    let sink = move |event| match sender.send(event) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    scheduler.submit(request, Box::new(sink))?;
    Ok(events)
}

impl Report {
    /// Counts the cases' texts and takes the smallest margin.
    fn of(cases: &[Case], texts: Vec<(String, f32)>) -> Self {
        let mut tasks = BTreeMap::<String, [usize; 2]>::new();
        let results: Vec<Answer> = cases
            .iter()
            .zip(texts)
            .map(|(case, (text, min_margin))| {
                let right = case.is_right(&text);
                let task = tasks.entry(case.task.clone()).or_default();
                task[0] += usize::from(right);
                task[1] += 1;
                Answer { id: case.id.clone(), text, right, min_margin }
            })
            .collect();
        let right = results.iter().filter(|answer| answer.right).count();
        Self { cases: cases.len(), right, tasks, results }
    }

    fn table(&self) -> String {
        let mut table = comfy_table::Table::new();
        table.load_preset(comfy_table::presets::UTF8_FULL_CONDENSED).set_header(["task", "right", "of"]);
        for (task, [right, of]) in &self.tasks {
            table.add_row([task.clone(), right.to_string(), of.to_string()]);
        }
        format!("{table}\n{} of {} right\n", self.right, self.cases)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;
    use moex_model::{
        Checkpoint, Packing,
        local_experts::{LocalExperts, MemoryBlocks},
    };

    const CASES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/data/demo-cases.jsonl");

    fn demo() -> (Arc<Model>, Arc<Text>) {
        let checkpoint = Checkpoint::demo().unwrap();
        (Arc::new(Model::load(&checkpoint).unwrap()), Arc::new(Text::load(&checkpoint).unwrap()))
    }

    /// A line of the file, as it stands there.
    fn references() -> Vec<Value> {
        let lines = std::fs::read_to_string(CASES).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn every_text_is_transformers_and_278_of_300_are_right() {
        let (model, text) = demo();
        let mut experts = LocalExperts::of_checkpoint(model.clone());
        let cases = cases::read(CASES.as_ref()).unwrap();
        let report = answer(model, text, &mut experts, &cases, &ProgressBar::hidden()).unwrap();
        for (result, reference) in report.results.iter().zip(references()) {
            assert_eq!(result.id, reference["id"]);
            assert_eq!(result.text, reference["reference"], "case {}", result.id);
            assert_eq!(result.right, reference["reference_right"], "case {}", result.id);
        }
        assert_eq!((report.right, report.cases), (278, 300));
        assert_eq!(report.tasks["mul"], [16, 24]);
        assert!(report.table().ends_with("278 of 300 right\n"));
    }

    /// What the demo model answers to some cases on a device; none where there is no GPU, unless
    /// `MOEX_REQUIRE_GPU=1` asks for one.
    #[cfg(feature = "gpu")]
    fn answers_on(wish: crate::pass_device::DeviceWish) -> Option<Vec<(String, bool)>> {
        use moex_kernels::simd::{KvFormat, Processor, Simd};
        use moex_model::{Compute, Fast, FloatWeights, Keep, local_experts::ExpertPanels};

        let checkpoint = Checkpoint::demo().unwrap();
        let processor = Arc::new(Processor::new(Simd::detect(), 2));
        let weights = FloatWeights::ByCheckpoint;
        let compute = Compute::Fast(Fast { processor: processor.clone(), weights, kv: KvFormat::F16 });
        let model = Arc::new(Model::load_for(&checkpoint, &compute).unwrap());
        let panels = |keep| ExpertPanels::new(model.clone(), processor.clone(), keep);
        let placed = match crate::pass_device::place(&model, wish, Keep::All, panels) {
            Err(error) if format!("{error:#}").contains("no GPU") => {
                let required = std::env::var("MOEX_REQUIRE_GPU").is_ok_and(|value| value == "1");
                assert!(!required, "MOEX_REQUIRE_GPU=1, but {error:#}");
                eprintln!("SKIPPED, nothing was tested: {error:#}");
                return None;
            }
            placed => placed.unwrap(),
        };
        let text = Arc::new(Text::load(&checkpoint).unwrap());
        let mut experts = LocalExperts::from_panels(placed.panels, moex_protocol::Dtype::F16);
        let cases: Vec<_> = cases::read(CASES.as_ref()).unwrap().into_iter().step_by(60).collect();
        let report = answer(model, text, &mut experts, &cases, &ProgressBar::hidden()).unwrap();
        Some(report.results.into_iter().map(|answer| (answer.text, answer.right)).collect())
    }

    #[test]
    #[cfg(feature = "gpu")]
    fn a_gpu_answers_as_the_cpu_does() {
        use crate::pass_device::DeviceWish;
        use moex_worker::device::DeviceChoice;

        let on_cpu = answers_on(DeviceWish::CPU).unwrap();
        for (gpus, gpu_layers) in
            [(None, None), (None, Some(2)), (None, Some(0)), (Some(2), None), (Some(3), Some(2))]
        {
            let wish = DeviceWish { choice: DeviceChoice::Gpu, gpus, gpu_layers };
            let Some(on_gpu) = answers_on(wish) else { return };
            let n_right = |answers: &[(String, bool)]| answers.iter().filter(|(_, right)| *right).count();
            assert_eq!((on_gpu.len(), n_right(&on_gpu)), (5, n_right(&on_cpu)), "{wish:?}");
            // A story may go on otherwise where two tokens are within rounding of each other.
            let n_alike = on_gpu.iter().zip(&on_cpu).filter(|(gpu, cpu)| gpu == cpu).count();
            assert!(n_alike >= 4, "{wish:?}: {n_alike} of 5 texts are alike");
        }
    }

    #[test]
    fn packed_experts_answer_too_and_say_what_they_are() {
        let (model, text) = demo();
        let blocks = MemoryBlocks::new(model.clone(), Packing::To("int4".parse().unwrap()));
        let mut experts = LocalExperts::exact(blocks, moex_protocol::Dtype::F16);
        let cases = cases::read(CASES.as_ref()).unwrap();
        let report = answer(model, text, &mut experts, &cases[..60], &ProgressBar::hidden()).unwrap();
        // Four bits cost little of the answers, and change some of the stories.
        assert!(report.right >= 45, "{} of 60", report.right);
        let json = serde_json::to_value(&report).unwrap();
        let keys: Vec<_> = json.as_object().unwrap().keys().collect();
        assert_eq!(keys, ["cases", "right", "tasks", "results"]);
    }
}
