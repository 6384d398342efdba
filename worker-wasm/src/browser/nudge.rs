//! Waits for a GPU in a browser. Chrome looks whether a GPU is done with what it was asked for when something is submitted, and
//! otherwise after 2 ms, then every 1 ms; Firefox every 100 ms. A layer of experts takes a tenth of a millisecond.

use std::pin::{Pin, pin};
use std::time::Duration;

use futures_util::future::{Either, select};

use super::{clock, js};

/// So long the browser is nudged between turns of the event loop, which take microseconds; then by timers, which take
/// milliseconds.
const BUSY: Duration = Duration::from_millis(5);
/// The time between two nudges: about as long as the browser takes for one.
const BUSY_INTERVAL: Duration = Duration::from_micros(50);
/// The time between two timers.
const INTERVAL: Duration = Duration::from_millis(1);

/// Waits for `computation`; meanwhile `nudge` makes the browser look whether it has ended.
pub(super) async fn nudging(mut computation: Pin<&mut dyn Future<Output = ()>>, nudge: &dyn Fn()) {
    let start = clock::now();
    let mut nudged = start;
    loop {
        let is_busy = clock::now().saturating_sub(start) < BUSY;
        let wait = async {
            match is_busy {
                true => js::turn().await,
                false => clock::sleep(INTERVAL).await,
            }
        };
        if let Either::Left(_) = select(computation.as_mut(), pin!(wait)).await {
            return;
        }
        let now = clock::now();
        if now.saturating_sub(nudged) >= BUSY_INTERVAL {
            nudged = now;
            nudge();
        }
    }
}
