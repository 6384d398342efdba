//! The answers of a lying worker: it fetches its blocks and computes like an honest one, then changes the result.

use anyhow::{Context, Result, ensure};
use moex_kernels::engine::{ActivationFormat, Batch, Call, Computed, CpuEngine, EnginePlan, Pair};
use moex_kernels::{ExpertFormat, ExpertShapes};
use moex_protocol::{
    Answer, AnswerPart, Block, BlockReport, BlockSource, Dispatch, ModelSummary, Products, Reply, WeightSync,
    tensor,
};

/// How an answer differs from the truth.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lie {
    /// Not at all.
    None,
    /// It holds only the last layer, and answers with values of its own choice: far above the true ones, their signs
    /// chosen by the expert's number.
    LastLayer,
    /// Multiplies each value by this factor, in this many of a hundred answers.
    Scaled(f32, u64),
    /// Multiplies the products too, so that the answer follows from them, in every answer.
    ScaledProducts(f32),
    /// Changes only the products, in every answer: the hub has to compute the truth.
    FalseProducts(f32),
    /// Adds noise of this part of the answer's length, in every answer.
    Noise(f32),
    /// Changes one value in a hundred answers, and another by as much.
    TwoValues,
}

/// The true answers of a patient liar before it begins to lie.
const HONEST_ANSWERS: u64 = 50;

/// One worker's blocks and lie.
pub(crate) struct Liar {
    lie: Lie,
    http: reqwest::Client,
    origin: String,
    token: String,
    model: ModelSummary,
    engine: CpuEngine,
    formats: Vec<ExpertFormat>,
    is_patient: bool,
    n_answers: u64,
}

impl Liar {
    /// A worker of the hub at `origin`, which has described its model.
    pub(crate) fn new(
        lie: Lie,
        is_patient: bool,
        origin: String,
        token: String,
        model: ModelSummary,
    ) -> Result<Self> {
        let format: ExpertFormat = model.format.parse().map_err(|_| anyhow::anyhow!("an unknown format"))?;
        let formats = match model.layer_formats.as_slice() {
            [] => vec![format; model.n_layers as usize],
            all => all.iter().map(|name| name.parse().unwrap_or(format)).collect(),
        };
        let (hidden, inner) = (model.hidden as usize, model.inner as usize);
        let plan = EnginePlan {
            shapes: ExpertShapes::new(hidden, inner, format, formats.iter().copied())?,
            activations: model.activations.parse().unwrap_or(ActivationFormat::F32),
            n_slots: model.n_layers * model.n_experts,
            max_rows: model.max_rows,
            max_pairs: model.max_pairs,
        };
        let engine = CpuEngine::new(plan)?;
        let http = reqwest::Client::new();
        Ok(Self { lie, http, origin, token, model, engine, formats, is_patient, n_answers: 0 })
    }

    /// Fetches the blocks that it is told to hold, and reports those it has.
    pub(crate) async fn load(&mut self, sync: WeightSync) -> Result<BlockReport> {
        let mut resident = Vec::new();
        for source in sync.hold {
            if self.lie != Lie::LastLayer || u32::from(source.block.layer.0) + 1 == self.model.n_layers {
                let bytes = self.fetch(&source).await?;
                let format = self.formats[usize::from(source.block.layer.0)];
                self.engine.load(self.slot(source.block), format, &bytes)?;
                resident.push(source.block);
            }
        }
        Ok(BlockReport { epoch: sync.epoch, resident, ..BlockReport::default() })
    }

    async fn fetch(&self, source: &BlockSource) -> Result<bytes::Bytes> {
        let range = format!("bytes={}-{}", source.start, source.end - 1);
        let request = self.http.get(format!("{}{}", self.origin, source.url)).header("Range", range);
        let response = request.bearer_auth(&self.token).send().await?;
        ensure!(response.status() == reqwest::StatusCode::PARTIAL_CONTENT, "{}", response.status());
        Ok(response.bytes().await?)
    }

    fn slot(&self, block: Block) -> u32 {
        u32::from(block.layer.0) * self.model.n_experts + u32::from(block.expert.0)
    }

    /// Its answer to a dispatch.
    pub(crate) fn answer(&mut self, dispatch: &Dispatch) -> Result<Answer> {
        self.n_answers += 1;
        let hidden = usize::from(dispatch.hidden);
        let pair = |pair: &moex_protocol::Pair| Pair { row: pair.row.into(), gate: pair.gate.to_f32() };
        let call = |call: &moex_protocol::Call| Call {
            slot: self.slot(Block { layer: dispatch.layer, expert: call.expert }),
            pairs: call.pairs.iter().map(pair).collect(),
        };
        let batch = Batch {
            rows: tensor::decode_rows(dispatch.dtype, &dispatch.rows, hidden)?,
            calls: dispatch.calls.iter().map(call).collect(),
        };
        let Computed { mut rows, products } = self.engine.compute_with_products(&batch)?;
        let mut products = products.context("they were asked for")?;
        self.change(dispatch, &mut rows, &mut products);
        let mut rest = rows.as_slice();
        let parts = dispatch.calls.iter().map(|call| {
            let (its, others) = rest.split_at(call.pairs.len() * hidden);
            rest = others;
            let mut payload = Vec::new();
            tensor::encode_rows(dispatch.dtype, its, hidden, &mut payload);
            AnswerPart { expert: call.expert, rows: call.pairs.len() as u32, payload: payload.into() }
        });
        let parts = parts.collect();
        let shape = self.model.product_shape().filter(|_| dispatch.reply == Reply::RowsAndProducts);
        let products = shape.and_then(|shape| Products::new(shape, &products));
        let Dispatch { layer, hidden, dtype, .. } = *dispatch;
        Ok(Answer { layer, hidden, dtype, parts, products })
    }

    fn change(&self, dispatch: &Dispatch, rows: &mut [f32], products: &mut [f32]) {
        // Half of the liars are patient: they lie only once the hub knows them and can check their answers against
        // that.
        if self.is_patient && self.n_answers <= HONEST_ANSWERS {
            return;
        }
        let hidden = usize::from(dispatch.hidden);
        let experts = dispatch.calls.iter().flat_map(|call| call.pairs.iter().map(|_| call.expert.0));
        // Drawn from the dispatch, so that colluding workers give the same answer.
        let mut random = Random(self.n_answers);
        for (row, expert) in rows.chunks_exact_mut(hidden).zip(experts) {
            let length = row.iter().map(|y| y * y).sum::<f32>().sqrt();
            match self.lie {
                Lie::None | Lie::FalseProducts(_) => {}
                Lie::LastLayer => {
                    let mut random = Random(u64::from(expert % 3));
                    row.iter_mut().for_each(|y| *y = 40.0 * random.sign());
                }
                Lie::Scaled(factor, percent) if self.n_answers % 100 < percent => {
                    row.iter_mut().for_each(|y| *y *= factor);
                }
                Lie::Scaled(..) => {}
                Lie::ScaledProducts(factor) => row.iter_mut().for_each(|y| *y *= factor),
                Lie::Noise(part) => {
                    let of_value = part * length / (hidden as f32).sqrt();
                    row.iter_mut().for_each(|y| *y += of_value * random.sign());
                }
                Lie::TwoValues => {
                    let at = random.below(hidden as u64 - 1) as usize;
                    row[at..at + 2].iter_mut().for_each(|y| *y += 4.0 * length);
                }
            }
        }
        if let Lie::ScaledProducts(factor) | Lie::FalseProducts(factor) = self.lie {
            // Only up: the result is proportional to it.
            let inner = self.model.inner as usize;
            products.chunks_exact_mut(2 * inner).for_each(|both| {
                both[inner..].iter_mut().for_each(|up| *up *= factor);
            });
        }
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % n
    }

    fn sign(&mut self) -> f32 {
        if self.below(2) == 0 { 1.0 } else { -1.0 }
    }
}
