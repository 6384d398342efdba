//! What is told of a prompt's tokens is what the model says of them, however the prompt is cut and whatever is cached.

use moex_model::{KvTable, Span, WantedLogits};

use super::*;
use crate::sampler::TokenLogprobs;

const N_TOP: usize = 3;

pub(super) fn asked(prompt_ids: &[u32]) -> Request {
    Request {
        prompt_ids: prompt_ids.to_vec(),
        prompt_logprobs: Some(N_TOP as u8),
        max_tokens: Some(0),
        ..Request::default()
    }
}

pub(super) fn told(heard: &Heard) -> Vec<TokenLogprobs> {
    let events = heard.0.lock().unwrap();
    let one = |event: &Event| match event {
        Event::PromptLogprobs(told) => Some(told.clone()),
        _ => None,
    };
    events.iter().filter_map(one).collect()
}

/// The log-softmax of every row of one pass over the whole prompt: of the token that follows, and the best.
fn expected(ids: &[u32]) -> Vec<(u32, f64, Vec<u32>)> {
    let (model, _) = demo();
    let mut kv = model.kv_pool(usize::MAX, 1);
    let mut table = KvTable::default();
    assert!(kv.reserve(&mut table, ids.len()));
    let span = Span { ids, start: 0, table: &table, wanted: WantedLogits::All };
    let logits = model.forward(&[span], &mut kv, &mut LocalExperts::of_checkpoint(model.clone())).unwrap();
    let rows = logits.chunks(model.spec().vocab).zip(&ids[1..]);
    rows.map(|(row, next)| {
        let log_sum = row.iter().map(|logit| f64::from(*logit).exp()).sum::<f64>().ln();
        let mut best: Vec<u32> = (0..row.len() as u32).collect();
        best.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]));
        best.truncate(N_TOP);
        (*next, f64::from(row[*next as usize]) - log_sum, best)
    })
    .collect()
}

fn assert_told(heard: &Heard, ids: &[u32], case: &str) {
    let (told, expected) = (told(heard), expected(ids));
    assert_eq!(told.len(), ids.len() - 1, "{case}");
    for (told, (token, logprob, best)) in told.iter().zip(expected) {
        assert_eq!(told.token, token, "{case}");
        assert!((told.logprob - logprob).abs() < 1e-6, "{case}: {} and {logprob}", told.logprob);
        assert_eq!(told.top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), best, "{case}");
    }
}

/// Longer than the rows that are told of in a step.
fn long_prompt() -> Vec<u32> {
    QUESTIONS.iter().cycle().take(8).flat_map(|question| request(question).prompt_ids).collect()
}

#[test]
fn a_prompt_is_told_of_as_the_model_sees_it_however_it_is_cut() {
    let ids = long_prompt();
    assert!(ids.len() > 150);
    for max_rows in [128, 7, 4] {
        let config = EngineConfig { max_rows, ..EngineConfig::default() };
        // Beside others, some of which generate.
        let mut requests: Vec<Request> = vec![request(QUESTIONS[0]), asked(&ids), asked(&ids[..1])];
        requests.push(Request { max_tokens: None, ..asked(&request(QUESTIONS[1]).prompt_ids) });
        let heard = run_all(config, requests.clone());
        let case = format!("{max_rows} rows a step");
        assert_told(&heard[1], &ids, &case);
        assert_told(&heard[2], &ids[..1], &case);
        assert_told(&heard[3], &requests[3].prompt_ids, &case);
        let finish = heard[1].finish();
        assert_eq!((finish.reason, finish.usage.completion_tokens), (FinishReason::Length, 0));
        assert_eq!(finish.usage.prompt_tokens, ids.len());
        assert_eq!(heard[0].text(), "83", "{case}");
        assert_eq!(heard[3].text(), "15, 16, 17, 18, 19, 20, 21, 22", "{case}");
    }
}

#[test]
fn a_cached_prompt_is_read_anew() {
    let (mut scheduler, mut experts) = scheduler(EngineConfig::default());
    let ids = long_prompt();
    for round in ["first", "again", "with an answer"] {
        let heard = Heard::default();
        let max_tokens = Some(u32::from(round == "with an answer"));
        scheduler.submit(Request { max_tokens, ..asked(&ids) }, heard.sink()).unwrap();
        while !scheduler.is_idle() {
            scheduler.step(&mut experts);
        }
        assert_told(&heard, &ids, round);
        assert_eq!(heard.finish().usage.cached_tokens, 0);
    }
    assert_eq!(scheduler.counts().tokens(), 1);
    // Who asks for nothing of it takes it up.
    let heard = Heard::default();
    let plain = Request { prompt_logprobs: None, max_tokens: Some(1), ..asked(&ids) };
    scheduler.submit(plain, heard.sink()).unwrap();
    while !scheduler.is_idle() {
        scheduler.step(&mut experts);
    }
    assert_eq!(heard.finish().usage.cached_tokens, ids.len() - 1);
}

#[test]
fn one_that_is_sent_back_in_the_middle_tells_each_token_once() {
    let (model, _) = demo();
    let page_bytes = PAGE_POSITIONS * model.compute().kv_layout(model.spec()).position_bytes();
    let config = EngineConfig { kv_bytes: 9 * page_bytes, max_rows: 16, ..EngineConfig::default() };
    let ids = long_prompt()[..6 * PAGE_POSITIONS].to_vec();
    // Grows while the prompt beside it is read.
    let grows = Request { ignore_eos: true, max_tokens: Some(150), ..request(QUESTIONS[0]) };
    let heard = run_all(config, vec![grows, asked(&ids), asked(&ids)]);
    assert_told(&heard[1], &ids, "first");
    assert_told(&heard[2], &ids, "second");
}
