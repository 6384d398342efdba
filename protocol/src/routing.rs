//! What a router decides, as the model gives it and the swarm takes it.

/// Which experts each row goes to, and how much each counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routing {
    /// K, the experts of a row.
    pub k: usize,
    /// (T, K), a row's experts are distinct.
    pub experts: Vec<u16>,
    /// (T, K), what each expert's answer is multiplied by.
    pub gates: Vec<f32>,
}
