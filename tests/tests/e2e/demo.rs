//! The first command a user types.

use crate::succeed;

#[test]
fn the_demo_answers_rightly_and_says_who_computed_what() {
    let output = succeed(&["demo", "What is 9 x 11?"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("99"), "the answer is in {text}");
    let workers_with_rows = text.lines().filter(|line| line.contains("worker") && line.contains('%')).count();
    assert!(workers_with_rows >= 2, "the table names two workers and their shares:\n{text}");
}
