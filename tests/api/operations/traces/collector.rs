//! An OpenTelemetry collector for tests: it accepts and keeps the exporter's spans.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value::Value};
use prost::Message;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A span as it was exported. Ids are hexadecimal.
#[derive(Debug, Clone)]
pub struct Exported {
    pub service: String,
    pub name: String,
    pub trace: String,
    pub id: String,
    /// Empty for the first span of a trace.
    pub parent: String,
    pub failed: bool,
    pub attributes: BTreeMap<String, String>,
    /// Traces and spans of other traces.
    pub links: Vec<(String, String)>,
}

#[derive(Clone)]
pub struct Collector {
    /// The value of OTEL_EXPORTER_OTLP_ENDPOINT.
    pub endpoint: String,
    spans: Arc<Mutex<Vec<Exported>>>,
}

impl Collector {
    pub async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let collector = Self { endpoint, spans: Arc::default() };
        let all = collector.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(all.clone().take(stream));
            }
        });
        collector
    }

    pub fn spans(&self) -> Vec<Exported> {
        self.spans.lock().unwrap().clone()
    }

    pub fn trace(&self, trace: &str) -> Vec<Exported> {
        self.spans().into_iter().filter(|span| span.trace == trace).collect()
    }

    async fn take(self, stream: TcpStream) {
        let mut stream = BufReader::new(stream);
        let (mut length, mut line) = (0, String::new());
        while stream.read_line(&mut line).await.is_ok_and(|n| n > 0) {
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
            if line == "\r\n" {
                let mut body = vec![0; length];
                stream.read_exact(&mut body).await.unwrap();
                let request = ExportTraceServiceRequest::decode(body.as_slice()).unwrap();
                self.spans.lock().unwrap().extend(exported(request));
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            }
            line.clear();
        }
    }
}

fn exported(request: ExportTraceServiceRequest) -> Vec<Exported> {
    let mut all = Vec::new();
    for resource in request.resource_spans {
        let service = attributes(resource.resource.unwrap().attributes).remove("service.name").unwrap();
        for span in resource.scope_spans.into_iter().flat_map(|scope| scope.spans) {
            all.push(Exported {
                service: service.clone(),
                name: span.name,
                trace: hex(&span.trace_id),
                id: hex(&span.span_id),
                parent: hex(&span.parent_span_id),
                // 2 is the code of an error.
                failed: span.status.is_some_and(|status| status.code == 2),
                attributes: attributes(span.attributes),
                links: span.links.iter().map(|link| (hex(&link.trace_id), hex(&link.span_id))).collect(),
            });
        }
    }
    all
}

fn attributes(all: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |attribute: KeyValue| match attribute.value.and_then(|value| value.value) {
        Some(Value::StringValue(text)) => (attribute.key, text),
        Some(Value::IntValue(number)) => (attribute.key, number.to_string()),
        other => (attribute.key, format!("{other:?}")),
    };
    all.into_iter().map(text).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
