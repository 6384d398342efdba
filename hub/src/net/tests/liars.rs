//! Workers that answer with what is no number.

use std::time::Instant;

use bytes::Bytes;
use moex_kernels::simd::{Processor, Simd};
use moex_model::{ExpertsError, Keep, LayerRequest};
use moex_protocol::{
    Answer, AnswerPart, BlockReport, Dispatch, Products, WorkerConfig, WorkerEvent, WorkerSession,
};

use super::*;

/// A sum that is not finite, given before its check, would make the next layer fail wherever honest machines compute it.
#[tokio::test(flavor = "multi_thread")]
async fn no_sum_is_given_that_is_not_finite() {
    for half in [0x7E00_u16, 0x7C00, 0xFC00] {
        let running = start_int8(|config| config.hub_compute = false).await;
        let liar = tokio::spawn(lie(running.address, half));
        running.wait_until("it serves", |status| status.coverage.covered == status.coverage.blocks).await;
        let (mut swarm, store) = (SwarmExperts::new(running.server.handle()), running.store.clone());
        let sums = tokio::task::spawn_blocking(move || {
            let (rows, routing) = layer(1);
            let mut sum = vec![0.0; rows.len()];
            let ticket = swarm.begin(LayerRequest { layer: 1, rows: &rows, routing: &routing }, &mut sum);
            swarm.finish_early(ticket.unwrap().unwrap(), &mut sum)?;
            swarm.confirm()?;
            Ok::<_, ExpertsError>([sum, store.experts(Dtype::F16).unwrap().apply(1, &rows, &routing)?])
        });
        let [sum, alone] = sums.await.unwrap().unwrap();
        assert!(alone.iter().all(|value| value.is_finite()) && alone.iter().any(|value| *value != 0.0));
        assert_eq!(sum, alone, "{half:#x}");
        running.wait_until("it is quarantined", |status| status.quarantined.len() == 1).await;
        assert!(running.server.handle().status().await.verification.lies > 0);
        liar.await.unwrap();
    }
}

/// A hub of the tiny model whose answers have the same bits everywhere.
async fn start_int8(edit: impl FnOnce(&mut SwarmConfig)) -> Running {
    let processor = Arc::new(Processor::new(Simd::detect(), 2));
    start_computing(
        &tiny(),
        Packing::To(WeightFormat::Int4G128.into()),
        |store| store.computing_int8(processor, Keep::All).unwrap(),
        |config| {
            config.model.activations = "int8".to_owned();
            edit(config);
        },
    )
    .await
}

/// A worker whose every value is this f16, until the hub closes.
async fn lie(hub: SocketAddr, half: u16) {
    let begun = Instant::now();
    let mut socket = connect_to(hub, true).await.unwrap();
    let mut session = WorkerSession::new(WorkerConfig { join: introduction(TOKEN) }, Duration::ZERO);
    let mut model = ModelSummary::default();
    loop {
        while let Some(event) = session.poll_event() {
            match event {
                WorkerEvent::Accepted(accepted) => model = accepted.model,
                WorkerEvent::Sync(sync) => {
                    let resident = sync.hold.into_iter().map(|source| source.block).collect();
                    let report = BlockReport { epoch: sync.epoch, resident, ..BlockReport::default() };
                    session.report_blocks(begun.elapsed(), report);
                }
                _ => {}
            }
        }
        while let Some((attempt, dispatch)) = session.next_work(begun.elapsed()) {
            session.complete(begun.elapsed(), attempt, filled(&dispatch, &model, half)).unwrap();
        }
        while let Some(message) = session.poll_transmit() {
            let _ = socket.send(Message::Binary(message)).await;
        }
        match socket.next().await {
            Some(Ok(Message::Binary(message))) => session.handle_message(begun.elapsed(), message),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
            _ => return,
        }
    }
}

/// An answer of this one value.
fn filled(dispatch: &Dispatch, model: &ModelSummary, half: u16) -> Answer {
    let shape = dispatch.answer_shape();
    let values = |n: usize| Bytes::from(half.to_le_bytes().repeat(n));
    let parts = shape.parts.iter().map(|(expert, rows)| {
        let payload = values(*rows as usize * usize::from(shape.hidden));
        AnswerPart { expert: *expert, rows: *rows, payload }
    });
    let products = model.product_shape().map(|products| {
        let payload = values(dispatch.n_pairs() * products.row_bytes() / 2);
        Products { shape: products, payload }
    });
    Answer { layer: shape.layer, hidden: shape.hidden, dtype: shape.dtype, parts: parts.collect(), products }
}
