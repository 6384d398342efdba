//! Clients take turns, and what nobody reads waits.

use std::sync::atomic::AtomicBool;

use super::*;

const ONE_AT_A_TIME: EngineConfig = EngineConfig {
    max_rows: 128,
    max_sequences: 1,
    max_waiting: 8,
    kv_bytes: 1 << 30,
    in_flight: None,
    guesses: true,
};

/// A reader that can stop reading, and go.
#[derive(Clone, Default)]
struct Reader {
    heard: Heard,
    is_reading: Arc<AtomicBool>,
    has_left: Arc<AtomicBool>,
}

impl Listener for Reader {
    fn hear(&mut self, event: Event) -> ControlFlow<()> {
        self.heard.0.lock().unwrap().push(event);
        ControlFlow::Continue(())
    }

    fn n_unread(&self) -> Option<usize> {
        let n = if self.is_reading.load(Ordering::Relaxed) { 0 } else { 1_000 };
        (!self.has_left.load(Ordering::Relaxed)).then_some(n)
    }
}

fn story() -> Request {
    Request { max_tokens: Some(30), ..request(QUESTIONS[2]) }
}

#[test]
fn a_text_that_nobody_reads_gives_its_place_to_others_and_is_the_same_when_it_is_read() {
    let alone = run_one(story()).text();
    let (mut scheduler, mut experts) = scheduler(ONE_AT_A_TIME);
    let reader = Reader::default();
    reader.is_reading.store(true, Ordering::Relaxed);
    scheduler.submit(story(), Box::new(reader.clone())).unwrap();
    for _ in 0..10 {
        assert!(scheduler.step(&mut experts));
    }
    reader.is_reading.store(false, Ordering::Relaxed);
    let so_far = reader.heard.text();
    assert!(!so_far.is_empty() && so_far != alone, "{so_far}");
    assert!(!scheduler.step(&mut experts), "there is nothing to compute");

    let other = Heard::default();
    scheduler.submit(request(QUESTIONS[0]), other.sink()).unwrap();
    while scheduler.step(&mut experts) {}
    assert_eq!(other.text(), "83");
    assert_eq!(reader.heard.text(), so_far, "it waits");
    assert!(!scheduler.is_idle());

    reader.is_reading.store(true, Ordering::Relaxed);
    while scheduler.step(&mut experts) {}
    assert_eq!(reader.heard.text(), alone);
    assert!(scheduler.is_idle());
}

#[test]
fn who_leaves_while_waiting_is_forgotten() {
    let (mut scheduler, mut experts) = scheduler(ONE_AT_A_TIME);
    let [unread, waiting] = [Reader::default(), Reader::default()];
    unread.is_reading.store(true, Ordering::Relaxed);
    scheduler.submit(story(), Box::new(unread.clone())).unwrap();
    scheduler.step(&mut experts);
    unread.is_reading.store(false, Ordering::Relaxed);
    scheduler.submit(story(), Box::new(waiting.clone())).unwrap();
    for reader in [&waiting, &unread] {
        assert!(!scheduler.step(&mut experts) && !scheduler.is_idle());
        reader.has_left.store(true, Ordering::Relaxed);
    }
    scheduler.step(&mut experts);
    assert!(scheduler.is_idle());
}

#[test]
fn clients_take_turns() {
    let (mut scheduler, mut experts) = scheduler(ONE_AT_A_TIME);
    let order = Arc::new(Mutex::new(Vec::new()));
    for client in [1, 1, 1, 1, 2, 3, 2] {
        let order = order.clone();
        let sink = move |event| {
            if matches!(event, Event::Finished(_)) {
                order.lock().unwrap().push(client);
            }
            ControlFlow::Continue(())
        };
        let asked = Request { client: Client(client), ..request(QUESTIONS[0]) };
        scheduler.submit(asked, Box::new(sink)).unwrap();
    }
    while scheduler.step(&mut experts) {}
    assert_eq!(*order.lock().unwrap(), [1, 2, 3, 1, 2, 1, 1]);
}
