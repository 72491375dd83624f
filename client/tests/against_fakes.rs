//! The client against servers that misbehave on command, over real sockets.

#![allow(clippy::disallowed_methods, reason = "these tests use real sockets")]

mod support;

use futures_util::future::BoxFuture;
use imprint_client::*;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use support::{Fake, Fault, Log, refusal, refusal_naming};

/// The machine's clock, and randomness that always says 0: the first server comes first.
#[derive(Debug)]
struct Fixed;

impl Ambient for Fixed {
    fn random_u64(&self) -> u64 {
        0
    }

    fn wall_micros(&self) -> u64 {
        SystemAmbient.wall_micros()
    }
}

fn options() -> ClientOptions {
    ClientOptions {
        deadline: Duration::from_secs(5),
        attempt_timeout: Duration::from_millis(300),
        backoff_first: Duration::from_millis(1),
        backoff_max: Duration::from_millis(5),
        ambient: Arc::new(Fixed),
        ..ClientOptions::default()
    }
}

async fn fakes<const N: usize>() -> ([Fake; N], Client, Arc<Mutex<Log>>) {
    let log = Arc::<Mutex<Log>>::default();
    let mut started = Vec::new();
    for node in 1..=N {
        started.push(Fake::start(node as u64, &log).await);
    }
    let addresses: Vec<String> = started.iter().map(|fake| fake.address.clone()).collect();
    let client = Client::connect(&addresses, options()).unwrap();
    let Ok(started) = started.try_into() else {
        panic!("as many as asked for");
    };
    (started, client, log)
}

fn batch(payload: &[u8]) -> ProducerBatch {
    let mut builder = BatchBuilder::new(BatchLimits::default());
    let message = Message {
        payload,
        ..Message::default()
    };
    builder.push(message).unwrap();
    builder.build().unwrap()
}

async fn send(client: &Client, retry_unknown: RetryUnknown) -> Result<u64, ClientError> {
    let options = SendOptions {
        retry_unknown,
        ..SendOptions::default()
    };
    let reply = client.send("t", 0, &batch(b"x"), options).await?;
    Ok(reply.base_offset)
}

#[tokio::test]
async fn sends_go_where_the_last_one_was_served() {
    let ([first, second], client, _) = fakes::<2>().await;
    *first.state.leader.lock().unwrap() = Some(second.address.clone());
    for expected in 0..3 {
        assert_eq!(send(&client, RetryUnknown::No).await.unwrap(), expected);
    }
    assert_eq!((first.calls(), second.calls()), (1, 2));
}

#[tokio::test]
async fn an_error_that_names_the_leader_is_followed_at_once() {
    let ([first, second, third], client, _) = fakes::<3>().await;
    let status = refusal_naming(Code::Unavailable, "NO_LEADER", &third.address);
    first.script([Fault::Refuse(status)]);
    send(&client, RetryUnknown::No).await.unwrap();
    assert_eq!((first.calls(), second.calls(), third.calls()), (1, 0, 1));
}

#[tokio::test]
async fn a_server_that_is_gone_is_passed_over() {
    let ([first, second], client, _) = fakes::<2>().await;
    send(&client, RetryUnknown::No).await.unwrap();
    drop(first);
    // The stopped server's connection is closed; a write that went into it might count as lost.
    let mut sent = 0;
    while send(&client, RetryUnknown::No).await.is_err() {
        sent += 1;
        assert!(sent < 3, "still not passed over");
    }
    assert!(second.calls() >= 1);
}

#[tokio::test]
async fn nobody_there_is_unreachable_and_not_sent() {
    let ([gone], client, _) = fakes::<1>().await;
    let address = gone.address.clone();
    drop(gone);
    let mut options = options();
    options.deadline = Duration::from_millis(200);
    let error = Client::connect(&[&address], options).unwrap();
    let error = send(&error, RetryUnknown::No).await.unwrap_err();
    assert_eq!(error.code(), Code::Unavailable);
    assert_eq!(error.reason(), Some(UNREACHABLE));
    assert_eq!(error.outcome(), Outcome::NotSent);
    assert!(error.attempts() > 1);
    assert_eq!(error.server(), address);
    drop(client);
}

/// Knows one name.
#[derive(Debug)]
struct OneName {
    address: String,
}

impl Dial for OneName {
    fn dial(&self, name: &str) -> BoxFuture<'static, io::Result<BoxStream>> {
        let known = (name == "the-server:7460").then(|| self.address.clone());
        Box::pin(async move {
            let address = known.ok_or(io::ErrorKind::NotFound)?;
            let stream = tokio::net::TcpStream::connect(address).await?;
            Ok(Box::new(stream) as BoxStream)
        })
    }
}

#[tokio::test]
async fn a_network_of_ones_own_is_dialled() {
    let ([server], _, _) = fakes::<1>().await;
    let dial = Arc::new(OneName {
        address: server.address.clone(),
    });
    let servers = ["unknown:1", "the-server:7460"];
    let client = Client::connect_with(&servers, options(), dial).unwrap();
    assert_eq!(send(&client, RetryUnknown::No).await.unwrap(), 0);
    assert_eq!(server.calls(), 1);
}

#[tokio::test]
async fn a_lost_answer_is_the_callers_unless_repeating_was_allowed() {
    let ([server], client, log) = fakes::<1>().await;
    let lost = || Fault::StoreThen(refusal(Code::Unavailable, "OUTCOME_UNKNOWN"));
    server.script([lost()]);
    let error = send(&client, RetryUnknown::No).await.unwrap_err();
    assert_eq!(error.outcome(), Outcome::Unknown);
    assert_eq!((error.attempts(), log.lock().unwrap().next_offset), (1, 1));

    server.script([lost()]);
    assert_eq!(send(&client, RetryUnknown::Yes).await.unwrap(), 2);
    assert_eq!(
        log.lock().unwrap().next_offset,
        3,
        "stored twice, as documented"
    );
}

#[tokio::test]
async fn silence_ends_with_the_attempt_and_others_are_asked() {
    let ([first, second], client, _) = fakes::<2>().await;
    first.script([Fault::Silence]);
    let status = client.admin().status().await.unwrap();
    assert_eq!(status.answered_by, 2);
    assert_eq!((first.calls(), second.calls()), (1, 1));
}

#[tokio::test]
async fn an_overloaded_server_is_waited_for() {
    let ([first, second], client, _) = fakes::<2>().await;
    let mut status = refusal(Code::ResourceExhausted, "OVERLOADED_BYTES");
    let details = retry_info(Duration::from_millis(20));
    status = tonic_status_with(details, status);
    first.script([Fault::Refuse(status)]);
    send(&client, RetryUnknown::No).await.unwrap();
    assert_eq!(first.calls() + second.calls(), 2);
}

#[tokio::test]
async fn a_final_refusal_is_not_repeated() {
    let ([first, second], client, _) = fakes::<2>().await;
    first.script([Fault::Refuse(refusal(Code::NotFound, "TOPIC_NOT_FOUND"))]);
    let error = client.admin().get_topic("t").await.unwrap_err();
    assert_eq!(error.reason(), Some("TOPIC_NOT_FOUND"));
    assert_eq!((first.calls(), second.calls()), (1, 0));
}

#[tokio::test]
async fn lists_are_read_page_after_page() {
    let ([_server], client, _) = fakes::<1>().await;
    let topics = client.admin().list_topics().await.unwrap();
    let names: Vec<&str> = topics.iter().map(|topic| topic.name.as_str()).collect();
    assert_eq!(names, ["a", "b"]);
}

#[tokio::test]
async fn what_is_produced_is_consumed_in_order() {
    let ([server], client, _) = fakes::<1>().await;
    let options = ProducerOptions {
        batch_messages: 7,
        linger: Duration::from_millis(1),
        retry_unknown: RetryUnknown::No,
        ..ProducerOptions::default()
    };
    let producer = client.producer("t", options).await.unwrap();
    server.script([Fault::Refuse(refusal(Code::Unavailable, "NO_LEADER"))]);
    let mut last = None;
    for number in 0..100u32 {
        let payload = number.to_string();
        let header = [UserHeader::text("n", "v")];
        let message = NewMessage {
            key: Some(b"k"),
            payload: payload.as_bytes(),
            headers: &header,
            ..NewMessage::default()
        };
        last = Some(producer.send(message).await.unwrap());
    }
    producer.flush().await.unwrap();
    assert_eq!(producer.acknowledged(), 100);
    assert_eq!(last.unwrap().wait().await.unwrap().offset, 99);

    let ends = client.confirmed_ends("t", &[0]).await.unwrap();
    let options = ConsumerOptions {
        from: Position::Offset(10),
        until: [(0, 95)].into(),
        poll_bytes: 2000,
        ..ConsumerOptions::default()
    };
    assert_eq!(ends.get(&0), Some(&100));
    let mut consumer = client.consumer("t", options).await.unwrap();
    let mut read = Vec::new();
    while let Some(fetched) = consumer.next().await {
        for record in fetched.unwrap().records() {
            assert_eq!(record.payload(), record.offset.to_string().as_bytes());
            assert_eq!(record.key(), Some(&b"k"[..]));
            assert_eq!(record.headers().count(), 2);
            read.push(record.offset);
        }
    }
    assert_eq!(read, (10..95).collect::<Vec<_>>());
}

/// Ten messages, a batch each, through a guarded producer; what the log holds then.
async fn produce_guarded(server: &Fake, client: &Client, faults: Vec<Fault>) -> u64 {
    let options = ProducerOptions {
        batch_messages: 1,
        retry_unknown: RetryUnknown::Guarded,
        ..ProducerOptions::default()
    };
    let producer = client.producer("t", options).await.unwrap();
    server.script(faults);
    for number in 0..10u32 {
        let payload = number.to_string();
        let message = NewMessage {
            payload: payload.as_bytes(),
            ..NewMessage::default()
        };
        drop(producer.send(message).await.unwrap());
    }
    producer.close().await.unwrap();
    client.confirmed_ends("t", &[0]).await.unwrap()[&0]
}

#[tokio::test]
async fn a_guarded_producer_stores_once_although_answers_are_lost() {
    let ([server], client, _) = fakes::<1>().await;
    let lost = || Fault::StoreThen(refusal(Code::Unavailable, "OUTCOME_UNKNOWN"));
    let nothing_stored = || Fault::Refuse(refusal(Code::Unavailable, "OUTCOME_UNKNOWN"));
    // The first call asks for the end; each lost answer costs a refused attempt and a look, which pass.
    let faults = vec![nothing_stored(), lost(), nothing_stored(), lost()];
    assert_eq!(produce_guarded(&server, &client, faults).await, 10);
}

#[tokio::test]
async fn a_guarded_producer_gives_way_to_another_writer() {
    let ([server], client, _) = fakes::<1>().await;
    assert_eq!(produce_guarded(&server, &client, Vec::new()).await, 10);
    let options = ProducerOptions {
        batch_messages: 1,
        linger: Duration::ZERO,
        retry_unknown: RetryUnknown::Guarded,
        ..ProducerOptions::default()
    };
    let producer = client.producer("t", options).await.unwrap();
    for round in 0..3 {
        let message = NewMessage {
            payload: b"guarded",
            ..NewMessage::default()
        };
        let delivery = producer.send(message).await.unwrap();
        assert_eq!(delivery.wait().await.unwrap().offset, 10 + 2 * round);
        // Behind the guarded producer's back: its next attempt is refused and goes round again.
        send(&client, RetryUnknown::No).await.unwrap();
    }
}

#[tokio::test]
async fn a_failed_batch_fails_its_messages_and_no_others() {
    let ([server], client, _) = fakes::<1>().await;
    let options = ProducerOptions {
        batch_messages: 1,
        linger: Duration::ZERO,
        ..ProducerOptions::default()
    };
    let producer = client.producer("t", options).await.unwrap();
    let refused = refusal(Code::InvalidArgument, "BATCH_MALFORMED");
    server.script([Fault::Refuse(refused)]);
    let message = NewMessage {
        payload: b"x",
        ..NewMessage::default()
    };
    let first = producer.send(message).await.unwrap();
    let second = producer.send(message).await.unwrap();
    assert!(matches!(first.wait().await, Err(ProduceError::Call(_))));
    assert_eq!(second.wait().await.unwrap().offset, 0);
    assert!(producer.first_failure().is_some());
    assert_eq!(producer.acknowledged(), 1);
}

#[tokio::test]
async fn a_message_above_the_limits_is_refused_before_it_is_sent() {
    let ([server], client, _) = fakes::<1>().await;
    let producer = client
        .producer("t", ProducerOptions::default())
        .await
        .unwrap();
    let before = server.calls();
    let payload = vec![0; 5 << 20];
    let message = NewMessage {
        payload: &payload,
        ..NewMessage::default()
    };
    let refused = producer.send(message).await;
    assert!(
        matches!(refused, Err(ProduceError::Message(_))),
        "{refused:?}"
    );
    let nowhere = NewMessage {
        partition: Some(1),
        ..NewMessage::default()
    };
    let refused = producer.send(nowhere).await;
    assert!(matches!(
        refused,
        Err(ProduceError::UnknownPartition { count: 1, .. })
    ));
    assert_eq!(server.calls(), before);
}

#[tokio::test]
async fn a_flipped_bit_is_reported_not_skipped() {
    let ([_server], client, log) = fakes::<1>().await;
    client
        .send("t", 0, &batch(b"payload"), SendOptions::default())
        .await
        .unwrap();
    {
        let mut log = log.lock().unwrap();
        let mut bytes = log.batches[0].to_contiguous().to_vec();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        // Structure alone is checked here, so the flip passes.
        log.batches[0] = imprint_proto::batch::StampedBatch::from_contiguous(bytes.into()).unwrap();
    }
    let mut consumer = client
        .consumer("t", ConsumerOptions::default())
        .await
        .unwrap();
    let reply = consumer.next().await.unwrap();
    assert!(matches!(
        reply,
        Err(ConsumeError::Damaged { offset: 0, .. })
    ));
    assert!(consumer.next().await.is_none());
}

/// `google.rpc.Status` with a `RetryInfo`, by hand.
fn retry_info(delay: Duration) -> Vec<u8> {
    use prost::encoding::{WireType, encode_key, encode_varint};
    fn nested(tag: u32, body: &[u8], out: &mut Vec<u8>) {
        encode_key(tag, WireType::LengthDelimited, out);
        encode_varint(body.len() as u64, out);
        out.extend_from_slice(body);
    }
    let (mut duration, mut info, mut any, mut status) = (vec![], vec![], vec![], vec![]);
    encode_key(2, WireType::Varint, &mut duration);
    encode_varint(u64::from(delay.subsec_nanos()), &mut duration);
    nested(1, &duration, &mut info);
    nested(1, b"type.googleapis.com/google.rpc.RetryInfo", &mut any);
    nested(2, &info, &mut any);
    nested(3, &any, &mut status);
    status
}

fn tonic_status_with(details: Vec<u8>, status: tonic::Status) -> tonic::Status {
    tonic::Status::with_details_and_metadata(
        status.code(),
        status.message(),
        details.into(),
        status.metadata().clone(),
    )
}
