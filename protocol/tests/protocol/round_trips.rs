//! Every frame there and back with random contents, in every form, format and compression; and that no bytes, random
//! or nearly right, make decoding panic.

use bytes::Bytes;
use half::f16;
use moex_protocol::{
    Accepted, Answer, AnswerPart, AttemptId, Beat, Block, BlockReport, BlockSource, Call, Compression,
    CompressionMode, Dispatch, Dtype, ErrorCode, ExpertId, Form, Frame, Heartbeat, Join, LayerId, Pair, Ping,
    Reply, SelfTest, Visibility, WeightSync, WeightSyncFrame, WireError, WorkerKey, WorkerKind, cancel,
    decode_message,
};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;

use crate::samples;

/// Both, so that every property holds in both.
const COMPRESSIONS: [Compression; 2] = [Compression::Off, Compression::Lz4];

const REPLIES: [Reply; 3] = [Reply::Rows, Reply::RowsAndProducts, Reply::Digests];

fn any_dispatch() -> impl Strategy<Value = Dispatch> {
    let size = (1..200_u16, 1..8_usize, select(Dtype::ALL.as_slice()), select(REPLIES.as_slice()));
    size.prop_flat_map(|(hidden, n_rows, dtype, reply)| {
        let pair = (0..n_rows as u16, any::<i16>())
            .prop_map(|(row, gate)| Pair { row, gate: f16::from_f32(f32::from(gate) / 256.0) });
        (
            any::<u16>().prop_map(LayerId),
            select([Form::Plain, Form::RowsOnce].as_slice()),
            vec(any::<u8>(), n_rows * dtype.row_bytes(usize::from(hidden))).prop_map(Bytes::from),
            btree_map((0..1000_u16).prop_map(ExpertId), vec(pair, 1..10), 1..6),
        )
            .prop_map(move |(layer, form, rows, calls)| {
                let calls = calls.into_iter().map(|(expert, pairs)| Call { expert, pairs }).collect();
                Dispatch { layer, hidden, dtype, form, rows, calls, reply }
            })
    })
}

fn any_answer() -> impl Strategy<Value = Answer> {
    any_dispatch().prop_flat_map(|dispatch| {
        let empty = samples::answer_to(&dispatch);
        let payload_bytes: usize = empty.parts.iter().map(|part| part.payload.len()).sum();
        vec(any::<u8>(), payload_bytes).prop_map(move |bytes| {
            let mut bytes = Bytes::from(bytes);
            let parts = empty
                .parts
                .iter()
                .map(|part| AnswerPart { payload: bytes.split_to(part.payload.len()), ..part.clone() });
            Answer { parts: parts.collect(), ..empty.clone() }
        })
    })
}

fn any_block() -> impl Strategy<Value = Block> {
    (any::<u16>(), any::<u16>())
        .prop_map(|(layer, expert)| Block { layer: LayerId(layer), expert: ExpertId(expert) })
}

fn any_join() -> impl Strategy<Value = Join> {
    let texts = (any::<String>(), any::<u128>(), any::<bool>(), any::<String>(), any::<String>());
    let lists = (vec(any::<String>(), 0..4), btree_map(any::<String>(), any::<u64>(), 0..4));
    // Halves: exact in JSON, whatever the parser's last digit.
    let numbers = (any::<u64>(), any::<bool>(), any::<i16>(), any::<u64>(), 1..65_u8);
    (texts, lists, numbers).prop_map(|(texts, (features, limits), numbers)| {
        let (token, key, browser, build, adapter) = texts;
        let (memory_budget_bytes, passed, half, sync_latency_micros, input_slots) = numbers;
        Join {
            token,
            key: WorkerKey(key),
            name: build.chars().take(16).collect(),
            kind: if browser { WorkerKind::Browser } else { WorkerKind::Native },
            build,
            backend: adapter.clone(),
            self_test: SelfTest { passed, worst_nmse: f64::from(half) / 2.0, detail: adapter.clone() },
            adapter,
            features,
            limits,
            memory_budget_bytes,
            sync_latency_micros,
            gigabytes_per_second: f32::from(half) / 2.0,
            teraflops: f32::from(half) * 2.0,
            input_slots,
            gives_products: browser,
            gives_digests: half % 2 == 0,
        }
    })
}

fn any_heartbeat() -> impl Strategy<Value = Heartbeat> {
    let accepted = (any::<u64>(), any::<u64>(), any::<u64>(), any::<String>(), any::<u32>(), any::<u64>());
    let accepted = accepted.prop_map(|(session, interval, timeout, name, number, block_bytes)| {
        let sample = samples::accepted();
        let model = moex_protocol::ModelSummary { name, hidden: number, block_bytes, ..sample.model };
        let wants_products = number % 2 == 1;
        Accepted {
            session,
            heartbeat_interval_millis: interval,
            dispatch_timeout_millis: timeout,
            model,
            wants_products,
        }
    });
    let visibility =
        select([Visibility::Visible, Visibility::Hidden, Visibility::Frozen, Visibility::Leaving].as_slice());
    let numbers = (any::<u32>(), any::<u64>(), any::<u32>());
    let beat = (any::<Option<u64>>(), visibility, numbers, any::<bool>());
    let beat = beat.prop_map(|(echo, visibility, numbers, takes_lz4)| {
        let (queue_depth, memory_used_bytes, blocks_resident) = numbers;
        Beat { echo, visibility, queue_depth, memory_used_bytes, blocks_resident, takes_lz4 }
    });
    let mode = select([CompressionMode::Off, CompressionMode::Auto, CompressionMode::On].as_slice());
    let ping = (any::<u64>(), mode, any::<Option<u64>>(), any::<u32>());
    let ping = ping.prop_map(|(hub_micros, compression, bytes_per_second, padding_bytes)| {
        Heartbeat::Ping(Ping { hub_micros, compression, bytes_per_second, padding_bytes })
    });
    prop_oneof![
        any_join().prop_map(Heartbeat::Join),
        accepted.prop_map(Heartbeat::Accepted),
        ping,
        beat.prop_map(Heartbeat::Beat),
    ]
}

fn any_weight_sync() -> impl Strategy<Value = WeightSyncFrame> {
    let source = (any_block(), any::<String>(), any::<u64>(), any::<u64>(), "[0-9a-f]{64}")
        .prop_map(|(block, url, start, end, blake3)| BlockSource { block, url, start, end, blake3 });
    let sync = (any::<u64>(), vec(source, 0..5), vec(any_block(), 0..5))
        .prop_map(|(epoch, hold, drop)| WeightSync { epoch, hold, drop });
    let failed = vec((any_block(), any::<String>()), 0..5);
    let report = (any::<u64>(), vec(any_block(), 0..5), failed, any::<[u64; 3]>());
    let report = report.prop_map(|(epoch, resident, failed, [bytes_done, bytes_total, bytes_downloaded])| {
        BlockReport { epoch, resident, failed, bytes_done, bytes_total, bytes_downloaded }
    });
    prop_oneof![sync.prop_map(WeightSyncFrame::Sync), report.prop_map(WeightSyncFrame::Report)]
}

fn any_error() -> impl Strategy<Value = WireError> {
    let code = select([ErrorCode::Version, ErrorCode::NotResident, ErrorCode::Draining].as_slice());
    (code, any::<String>(), any::<Option<u32>>()).prop_map(|(code, message, attempt)| WireError {
        code,
        message,
        attempt: attempt.map(AttemptId),
    })
}

/// What decoding makes of a dispatch: a plain one has its rows gathered per expert and its pairs counted upwards.
fn as_decoded(dispatch: &Dispatch) -> Dispatch {
    if dispatch.form != Form::Plain {
        return dispatch.clone();
    }
    let pairs = || dispatch.calls.iter().flat_map(|call| &call.pairs);
    let row = |pair: &Pair| dispatch.row(usize::from(pair.row)).expect("the row is there").to_vec();
    let mut next_row = 0..;
    let calls = dispatch.calls.iter().map(|call| Call {
        expert: call.expert,
        pairs: (call.pairs.iter().zip(next_row.by_ref()))
            .map(|(pair, row)| Pair { row, gate: pair.gate })
            .collect(),
    });
    Dispatch { calls: calls.collect(), rows: pairs().flat_map(row).collect(), ..dispatch.clone() }
}

proptest! {
    #[test]
    fn dispatches_come_back(dispatch in any_dispatch(), attempt in any::<u32>()) {
        let attempt = AttemptId(attempt);
        for compression in COMPRESSIONS {
            let message = dispatch.encode(attempt, compression).unwrap();
            prop_assert_eq!(decode_message(&message), Ok(vec![Frame::Dispatch(attempt, as_decoded(&dispatch))]));
        }
    }

    #[test]
    fn answers_come_back(answer in any_answer(), attempt in any::<u32>()) {
        let attempt = AttemptId(attempt);
        for compression in COMPRESSIONS {
            let message = answer.encode(attempt, compression).unwrap();
            prop_assert_eq!(decode_message(&message), Ok(vec![Frame::Result(attempt, answer.clone())]));
        }
    }

    #[test]
    fn control_frames_come_back(
        heartbeat in any_heartbeat(),
        sync in any_weight_sync(),
        error in any_error(),
        attempt in any::<u32>(),
    ) {
        for compression in COMPRESSIONS {
            // In one message, as frames may be.
            let message = [
                heartbeat.encode(compression),
                cancel::encode(AttemptId(attempt)),
                sync.encode(compression),
                error.encode(compression),
            ];
            let expected = vec![
                Frame::Heartbeat(heartbeat.clone()),
                Frame::Cancel(AttemptId(attempt)),
                Frame::WeightSync(sync.clone()),
                Frame::Error(error.clone()),
            ];
            prop_assert_eq!(decode_message(&message.concat().into()), Ok(expected));
        }
    }

    #[test]
    fn uncompressed_messages_are_one_allocation_of_exactly_their_size(dispatch in any_dispatch()) {
        let message = dispatch.encode(AttemptId(1), Compression::Off).unwrap();
        let n_bytes = message.len();
        let buffer = message.try_into_mut().expect("nobody else holds it");
        prop_assert_eq!(buffer.capacity(), n_bytes);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..512)) {
        moex_protocol::fuzzing::decode(&bytes);
    }

    #[test]
    fn damaged_messages_never_panic(
        dispatch in any_dispatch(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        keep in any::<prop::sample::Index>(),
    ) {
        for compression in COMPRESSIONS {
            let mut bytes = dispatch.encode(AttemptId(1), compression).unwrap().to_vec();
            for (at, byte) in &damage {
                let at = at.index(bytes.len());
                bytes[at] = *byte;
            }
            moex_protocol::fuzzing::decode(&bytes);
            moex_protocol::fuzzing::decode(&bytes[..keep.index(bytes.len())]);
        }
    }

    #[test]
    fn arbitrary_operations_keep_the_sessions_rules(bytes in vec(any::<u8>(), 0..512), serving in any::<bool>()) {
        // Slots; then the join arrives, is accepted, all blocks are reported and the report arrives.
        let prefix: &[u8] = if serving { &[2, 0, 5, 1, 11, 0xFF, 0] } else { &[] };
        moex_protocol::fuzzing::sessions(&[prefix, &bytes].concat());
    }
}
