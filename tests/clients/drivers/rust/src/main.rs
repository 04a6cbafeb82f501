//! fe2o3-amqp, which does not connect again.
//!
//! Requests are JSON lines on standard input, {"do": name, ...its arguments}, and answers {"result": …} or {"error": …}
//! on standard output.

use std::{collections::HashMap, env::var, error::Error, sync::Arc};

use fe2o3_amqp::{
    connection::ConnectionHandle,
    link::{delivery::DeliveryInfo, receiver::CreditMode},
    sasl_profile::SaslProfile,
    session::SessionHandle,
    transaction::{Controller, OwnedTransaction, TransactionDischarge, TransactionPosting, TransactionRetirement},
    Connection, Delivery, Receiver, Sender, Session,
};
use fe2o3_amqp_types::{
    definitions::{Error as AmqpError, ErrorCondition, Fields},
    messaging::{
        annotations::OwnedKey, AmqpValue, Batch, Body, Data, DistributionMode, Message, MessageAnnotations, Modified,
        Outcome, Properties, Source,
    },
    primitives::{Binary, OrderedMap, Symbol, Timestamp},
};
use rustls::pki_types::{pem::PemObject, CertificateDer};
use serde_amqp::{described::Described, descriptor::Descriptor, Value};
use serde_json::{json, Value as Json};
use tokio::io::{stdin, AsyncBufReadExt, BufReader};

type Answer = Result<Json, Box<dyn Error>>;
type Content = Body<Value>;

struct Links {
    connection: ConnectionHandle<()>,
    session: SessionHandle<()>,
    senders: HashMap<String, Sender>,
    receivers: HashMap<String, Receiver>,
    deliveries: Vec<(String, DeliveryInfo)>,
    transaction: Option<OwnedTransaction>,
    control: Option<Controller>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut connection = connected().await?;
    let session = Session::begin(&mut connection).await?;
    let (senders, receivers) = (HashMap::new(), HashMap::new());
    let mut links = Links { connection, session, senders, receivers, deliveries: vec![], transaction: None, control: None };
    let mut lines = BufReader::new(stdin()).lines();
    while let Some(line) = lines.next_line().await? {
        let answer = match links.answer(&serde_json::from_str(&line)?).await {
            Ok(result) => json!({ "result": result }),
            Err(error) => json!({ "error": error.to_string() }),
        };
        println!("{answer}");
    }
    Ok(())
}

async fn connected() -> Result<ConnectionHandle<()>, Box<dyn Error>> {
    let (host, port) = (var("HOST")?, var("PORT")?);
    let profile = match (var("KEY_NAME"), var("KEY")) {
        (Ok(username), Ok(password)) => SaslProfile::Plain { username, password },
        _ => SaslProfile::Anonymous,
    };
    let builder = Connection::builder().container_id("driver").hostname(host.as_str()).sasl_profile(profile);
    Ok(match var("TRANSPORT")?.as_str() {
        "tcp" => builder.open(format!("amqp://{host}:{port}").as_str()).await?,
        "tls" => {
            let mut roots = rustls::RootCertStore::empty();
            roots.add(CertificateDer::from_pem_file(var("CA_FILE")?)?)?;
            let trusting = rustls::ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
            // TLS from the first byte, without AMQP's own header for it.
            let builder = builder.tls_connector(Arc::new(trusting).into()).alt_tls_establishment(true);
            builder.domain(host.as_str()).open(format!("amqps://{host}:{port}").as_str()).await?
        }
        _ => {
            let url = format!("ws://{host}:{port}/$servicebus/websocket");
            builder.open_with_stream(fe2o3_amqp_ws::WebSocketStream::connect(url).await?).await?
        }
    })
}

fn text<'a>(asked: &'a Json, name: &str) -> &'a str {
    asked[name].as_str().unwrap_or_default()
}

fn content(body: &Content) -> String {
    match body {
        Body::Data(parts) => parts.iter().map(|part| String::from_utf8_lossy(&part.0).into_owned()).collect(),
        Body::Value(AmqpValue(Value::String(text))) => text.clone(),
        _ => String::new(),
    }
}

fn message(body: &str) -> Message<Content> {
    Message::builder().body(Body::Data(Batch::new(vec![Data(Binary::from(body.as_bytes().to_vec()))]))).build()
}

impl Links {
    async fn answer(&mut self, asked: &Json) -> Answer {
        match text(asked, "do") {
            "send" => self.send(asked).await,
            "receive" => self.receive(asked).await,
            "browse" => self.browse(asked).await,
            "settle" => self.settle(asked).await,
            "settle-then-close" => self.settle_then_close(asked).await,
            "begin-exchange" => self.begin_exchange(asked).await,
            "span-entities" => {
                self.control = Some(Controller::attach(&mut self.session, "control").await?);
                Ok(Json::Null)
            }
            "end-exchange" => self.end_exchange(asked).await,
            _ => Err("not known".into()),
        }
    }

    async fn sender(&mut self, to: &str) -> Result<&mut Sender, Box<dyn Error>> {
        if !self.senders.contains_key(to) {
            let sender = Sender::attach(&mut self.session, format!("to {to}"), to).await?;
            self.senders.insert(to.to_owned(), sender);
        }
        Ok(self.senders.get_mut(to).unwrap())
    }

    async fn receiver(&mut self, name: &str, source: Source) -> Result<&mut Receiver, Box<dyn Error>> {
        if !self.receivers.contains_key(name) {
            let builder = Receiver::builder().name(name).source(source).credit_mode(CreditMode::Manual);
            self.receivers.insert(name.to_owned(), builder.attach(&mut self.session).await?);
        }
        Ok(self.receivers.get_mut(name).unwrap())
    }

    async fn send(&mut self, asked: &Json) -> Answer {
        let mut sent = message(text(asked, "body"));
        if let Some(session) = asked["session"].as_str() {
            sent.properties = Some(Properties::builder().group_id(session.to_owned()).build());
        }
        if let Some(at) = asked["at"].as_i64() {
            let due = MessageAnnotations::builder().insert("x-opt-scheduled-enqueue-time", Timestamp::from(at));
            sent.message_annotations = Some(due.build());
        }
        let outcome = self.sender(text(asked, "to")).await?.send(sent).await?;
        outcome.accepted_or_else(|other| format!("{other:?}"))?;
        Ok(Json::Null)
    }

    async fn receive(&mut self, asked: &Json) -> Answer {
        let (path, mut source) = (text(asked, "path"), Source::builder().address(text(asked, "path")));
        if let Some(session) = asked.get("session") {
            let filter = Symbol::from("com.microsoft:session-filter");
            let value = session.as_str().map_or(Value::Null, Value::from);
            let described = Described { descriptor: Descriptor::Name(filter.clone()), value };
            source = source.filter(OrderedMap::from_iter([(filter, Value::Described(Box::new(described)))]));
        }
        let name = format!("from {path} {:?}", asked.get("session"));
        let receiver = self.receiver(&name, source.build()).await?;
        receiver.set_credit(1).await?;
        let delivery: Delivery<Content> = receiver.recv().await?;
        let got = delivery.message();
        let header = got.header.as_ref();
        let annotations = got.message_annotations.as_ref().map(|each| &each.0);
        let partition = annotations.and_then(|each| each.get(&OwnedKey::from("x-opt-partition-id")));
        let answer = json!({
            "delivery": self.deliveries.len(),
            "body": content(delivery.body()),
            "count": header.map_or(0, |each| each.delivery_count),
            "ttl": header.and_then(|each| each.ttl),
            "session": got.properties.as_ref().and_then(|each| each.group_id.clone()),
            "properties": got.application_properties.as_ref().map_or(0, |each| each.0.len()),
            "partition": if let Some(Value::Short(id)) = partition { Some(id) } else { None },
        });
        self.deliveries.push((name, DeliveryInfo::from(&delivery)));
        Ok(answer)
    }

    async fn browse(&mut self, asked: &Json) -> Answer {
        let (path, count) = (text(asked, "path"), asked["count"].as_u64().unwrap_or(0) as u32);
        let source = Source::builder().address(path).distribution_mode(DistributionMode::Copy).build();
        let receiver = self.receiver(&format!("copies of {path}"), source).await?;
        receiver.set_credit(count).await?;
        let mut bodies = vec![];
        for _ in 0..count {
            let delivery: Delivery<Content> = receiver.recv().await?;
            bodies.push(content(delivery.body()));
        }
        Ok(json!(bodies))
    }

    fn delivered(&mut self, asked: &Json) -> (&mut Receiver, DeliveryInfo) {
        let (name, delivery) = self.deliveries[asked["delivery"].as_u64().unwrap_or(0) as usize].clone();
        (self.receivers.get_mut(&name).unwrap(), delivery)
    }

    async fn settle(&mut self, asked: &Json) -> Answer {
        let (receiver, delivery) = self.delivered(asked);
        let modified = |failed, elsewhere| Modified {
            delivery_failed: Some(failed),
            undeliverable_here: Some(elsewhere),
            message_annotations: None,
        };
        match text(asked, "how") {
            "release" => receiver.release(delivery).await?,
            "modify" => receiver.modify(delivery, modified(true, false)).await?,
            "defer" => receiver.modify(delivery, modified(false, true)).await?,
            "reject" => receiver.reject(delivery, told()).await?,
            _ => receiver.accept(delivery).await?,
        }
        Ok(Json::Null)
    }

    async fn settle_then_close(&mut self, asked: &Json) -> Answer {
        self.settle(asked).await?;
        for (_, receiver) in self.receivers.drain() {
            receiver.close().await?;
        }
        self.session.end().await?;
        self.connection.close().await?;
        Ok(Json::Null)
    }

    async fn begin_exchange(&mut self, asked: &Json) -> Answer {
        let transaction = OwnedTransaction::declare(&mut self.session, "transactions", None).await?;
        let (receiver, delivery) = self.delivered(asked);
        match text(asked, "how") {
            "reject" => transaction.reject(receiver, delivery, Some(told())).await?,
            _ => transaction.accept(receiver, delivery).await?,
        }
        if let Some(to) = asked["to"].as_str() {
            let sender = self.sender(to).await?;
            let outcome: Outcome = transaction.post(sender, message(text(asked, "body"))).await?;
            outcome.accepted_or_else(|other| format!("{other:?}"))?;
        }
        self.transaction = Some(transaction);
        Ok(Json::Null)
    }

    async fn end_exchange(&mut self, asked: &Json) -> Answer {
        let transaction = self.transaction.take().ok_or("no transaction")?;
        Ok(json!(if asked["commits"] == json!(false) {
            transaction.rollback().await?;
            "aborted"
        } else if transaction.commit().await.is_ok() {
            "committed"
        } else {
            "refused"
        }))
    }
}

fn told() -> AmqpError {
    let info = Fields::from_iter([(Symbol::from("DeadLetterReason"), Value::from("told"))]);
    AmqpError::new(ErrorCondition::Custom("com.microsoft:dead-letter".into()), None, Some(info))
}
