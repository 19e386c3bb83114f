//! A receiver of notices.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::poll;

/// The answer of a receiver.
#[derive(Clone, Copy, Default, PartialEq)]
pub(crate) enum Answer {
    #[default]
    Taken,
    /// It refuses for now.
    Busy,
    /// It sends nothing, and keeps the connection.
    Nothing,
}

/// A receiver of notices.
pub(crate) struct Receiver {
    pub(crate) url: String,
    state: Arc<Mutex<(Answer, Vec<Value>)>>,
    task: JoinHandle<()>,
}

impl Receiver {
    pub(crate) async fn start(path: &str, answer: Answer) -> anyhow::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/{path}", listener.local_addr()?);
        let state = Arc::new(Mutex::new((answer, Vec::new())));
        let served = state.clone();
        let task = tokio::spawn(async move {
            let mut open = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let Some(event) = read(&mut stream).await else { continue };
                let answer = {
                    let mut state = served.lock().unwrap_or_else(PoisonError::into_inner);
                    if state.0 == Answer::Taken {
                        state.1.push(event);
                    }
                    state.0
                };
                let status = match answer {
                    Answer::Taken => "204 No Content",
                    Answer::Busy => "503 Service Unavailable",
                    Answer::Nothing => {
                        open.push(stream);
                        continue;
                    }
                };
                let reply = format!("HTTP/1.1 {status}\r\nconnection: close\r\n\r\n");
                let _ = stream.write_all(reply.as_bytes()).await;
            }
        });
        Ok(Self { url, state, task })
    }

    pub(crate) fn answer(&self, answer: Answer) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0 = answer;
    }

    /// The notices that it has taken, by their ids. The same id is the same event.
    pub(crate) fn taken(&self) -> BTreeMap<String, Value> {
        let taken = self.state.lock().unwrap_or_else(PoisonError::into_inner).1.clone();
        let mut by_id = BTreeMap::new();
        for event in taken {
            let id = event["id"].as_str().unwrap_or_default().to_owned();
            let other = by_id.insert(id, event.clone());
            assert!(other.as_ref().is_none_or(|other| *other == event), "one id for {other:?} and {event}");
        }
        by_id
    }

    /// Waits until it has so many notices of an event.
    pub(crate) async fn until(&self, event: &str, count: usize) -> anyhow::Result<Vec<Value>> {
        let type_ = format!("aws.bottlerocket.brupop.{event}");
        poll(&format!("{count} notices of {event}"), async || {
            let of: Vec<Value> = self.taken().into_values().filter(|notice| notice["type"] == type_).collect();
            Ok((of.len() >= count).then_some(of))
        })
        .await
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads one request: its head and its body.
pub(crate) async fn read_request(stream: &mut TcpStream) -> Option<(String, String)> {
    let mut bytes = Vec::new();
    loop {
        if stream.read_buf(&mut bytes).await.ok()? == 0 {
            return None;
        }
        let text = String::from_utf8_lossy(&bytes);
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let lower = head.to_lowercase();
        let length = lower.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok());
        if body.len() >= length.unwrap_or(0) {
            return Some((head.to_owned(), body.to_owned()));
        }
    }
}

/// Reads one request and returns its body, if it is a CloudEvent.
async fn read(stream: &mut TcpStream) -> Option<Value> {
    let (head, body) = read_request(stream).await?;
    let is_event = head.to_lowercase().contains("content-type: application/cloudevents+json");
    serde_json::from_str(&body).ok().filter(|_| is_event)
}
