//! The simulator predicts this machine's own swarm from the trace that its hub wrote. `cargo xtask bench replay` does so
//! for many swarms and for a true geometry, on a quiet machine and more strictly; here are two whose time is mostly that of
//! their links, since the machines that run tests are shared.

use moex_tests::{
    hub::Moex,
    replay::{Config, Load, measure},
};

/// What the prediction of tokens a second may be off by where the processor is shared with who knows whom.
const TOLERANCE: f64 = 0.25;
const LOAD: Load = Load { n_answers: 3, n_tokens: 24 };

#[tokio::test]
async fn tokens_a_second_are_predicted_from_the_first_half_of_a_trace() {
    for config in ["1:40:1", "2:40:2"] {
        let config: Config = config.parse().unwrap();
        let comparison = measure(&Moex::under_test(), None, &config, LOAD).await.unwrap();
        let (error, measured) = (comparison.error(), comparison.measured.tokens_per_s());
        assert!(comparison.measured.tokens > 20, "{config}: {} tokens", comparison.measured.tokens);
        assert!(error.abs() < TOLERANCE, "{config}: off by {error:+.3} of {measured:.1} tokens/s");
    }
}
