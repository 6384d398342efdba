//! What is heard of those who have not shown a token, and of pings.

use super::*;

/// What has not joined may send this and no more, however it is cut into frames.
#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_is_heard_for_64_kib_and_no_longer() {
    let running = start(|_| {}).await;
    let size: Option<u16> = Some(1009);
    for piece in [1 << 20, 4096, 100] {
        let mut socket = connect(&running, true).await.unwrap();
        // The hub closes while this goes on: what cannot be sent any more is no matter.
        let frame = |is_last, opcode| {
            let data = vec![0u8; piece];
            tungstenite::protocol::frame::Frame::message(data, OpCode::Data(opcode), is_last)
        };
        let mut opcode = Data::Binary;
        for _ in 0..(1 << 20) / piece {
            if socket.feed(Message::Frame(frame(false, opcode))).await.is_err() {
                break;
            }
            opcode = Data::Continue;
        }
        let _ = socket.flush().await;
        let code = read_to_close(socket).await.1;
        // A reset may overtake the close.
        assert!(code == size || code.is_none(), "{piece}: {code:?}");
        running.wait_until("it is gone", |status| status.totals.sessions_ended > 0).await;
    }
    assert_eq!(
        running.server.handle().status().await.totals.bytes_received,
        0,
        "nothing of it reached the swarm"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pings_are_counted_before_and_after_a_worker_has_joined() {
    let running = start(|_| {}).await;
    for has_joined in [false, true] {
        let mut socket = connect(&running, true).await.unwrap();
        if has_joined {
            socket.send(join(TOKEN)).await.unwrap();
            running.wait_until("it has joined", |status| status.workers.len() == 1).await;
        }
        for _ in 0..1000 {
            if socket.send(Message::Ping(Default::default())).await.is_err() {
                break;
            }
        }
        let code = read_all(socket).await;
        assert!(matches!(code, Some(1008) | None), "{code:?}");
        running.wait_until("it is gone", |status| status.workers.is_empty()).await;
    }
}

/// The code that the hub closes with; what it says before is passed over.
async fn read_all(mut socket: Socket) -> Option<u16> {
    let read = async {
        while let Some(Ok(message)) = socket.next().await {
            if let Message::Close(frame) = message {
                return frame.map(|frame| frame.code.into());
            }
        }
        None
    };
    tokio::time::timeout(Duration::from_secs(20), read).await.expect("the hub closes")
}
