//! A gateway's question: policy, key and cost, from headers or from the query.

use actix_web::HttpRequest;
use actix_web::http::StatusCode;
use actix_web::http::header::HeaderMap;
use url::form_urlencoded;

use seckill_http::problem::Problem;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum QuestionFrom {
    /// From headers, because the query is the caller's.
    Headers,
    HeadersOrQuery,
}

#[derive(Debug)]
pub(crate) struct Question {
    pub(crate) app: Option<String>,
    pub(crate) policy: String,
    pub(crate) key: String,
    pub(crate) permits: Option<i64>,
    pub(crate) deny: StatusCode,
}

/// Each part: its name in the query, and its header.
const NAMES: [(&str, &str); 5] = [
    ("app", "x-seckill-app"),
    ("policy", "x-seckill-policy"),
    ("key", "x-seckill-key"),
    ("permits", "x-seckill-permits"),
    ("deny", "x-seckill-deny"),
];
const POLICY: usize = 1;

/// The values in the order of `NAMES`. An empty value is no value: a gateway fills its headers with variables.
type Values = [Option<String>; NAMES.len()];

impl Question {
    /// All parts come from headers, or all from the query. A gateway writes one of the two, and its caller may have written the other: with a
    /// key from there, callers would choose their own limit.
    pub(crate) fn read(request: &HttpRequest, from: QuestionFrom) -> Result<Self, Problem> {
        let query = match from {
            QuestionFrom::Headers => "",
            QuestionFrom::HeadersOrQuery => request.query_string(),
        };
        let (query_name, header) = NAMES[POLICY];
        let in_header = request.headers().contains_key(header);
        let in_query = form_urlencoded::parse(query.as_bytes()).any(|(name, _)| name == query_name);
        let values = match (in_header, in_query) {
            (true, true) => return Err(Problem::invalid("X-Seckill-Policy and the query both name a policy")),
            (false, true) => from_query(query)?,
            (_, false) => from_headers(request.headers())?,
        };
        Self::parse(values)
    }

    fn parse([app, policy, key, permits, deny]: Values) -> Result<Self, Problem> {
        let policy = policy.ok_or_else(|| Problem::invalid("no policy is named: set X-Seckill-Policy"))?;
        let permits = match permits {
            None => None,
            // `parse` would also take a sign.
            Some(text) if text.bytes().all(|b| b.is_ascii_digit()) => {
                Some(text.parse().map_err(|_| Problem::invalid("permits must be 1 to 1000000000"))?)
            }
            Some(_) => return Err(Problem::invalid("permits must be a whole number")),
        };
        let deny = match deny.as_deref() {
            None | Some("403") => StatusCode::FORBIDDEN,
            Some("429") => StatusCode::TOO_MANY_REQUESTS,
            Some(_) => return Err(Problem::invalid("deny must be 403 or 429")),
        };
        Ok(Self { app, policy, key: key.unwrap_or_default(), permits, deny })
    }
}

fn from_query(query: &str) -> Result<Values, Problem> {
    let mut values = Values::default();
    for (name, value) in form_urlencoded::parse(query.as_bytes()) {
        let place = NAMES.iter().position(|(known, _)| *known == name);
        let place = place.ok_or_else(|| Problem::invalid("the query may have app, policy, key, permits and deny"))?;
        put(&mut values, place, &value)?;
    }
    Ok(values)
}

fn from_headers(headers: &HeaderMap) -> Result<Values, Problem> {
    let mut values = Values::default();
    for (place, (name, header)) in NAMES.iter().enumerate() {
        for value in headers.get_all(*header) {
            let value = std::str::from_utf8(value.as_bytes());
            let value = value.map_err(|_| Problem::invalid(format_args!("{name} must be UTF-8")))?;
            put(&mut values, place, value)?;
        }
    }
    Ok(values)
}

fn put(values: &mut Values, place: usize, value: &str) -> Result<(), Problem> {
    if !value.is_empty() && values[place].replace(value.to_owned()).is_some() {
        return Err(Problem::invalid(format_args!("{} is given twice", NAMES[place].0)));
    }
    Ok(())
}
