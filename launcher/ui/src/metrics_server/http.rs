//! As much of HTTP/1.1 as a scraper needs. Pure.

use crate::openmetrics::CONTENT_TYPE;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HttpResponse {
    /// The metrics; with `head` only the headers.
    Metrics { head: bool },
    /// There is nothing under this path.
    NotFound,
    /// Only GET and HEAD are known.
    MethodNotAllowed,
    /// The request is no HTTP/1.
    BadRequest,
    /// The request is too long.
    TooLarge,
}

/// Returns the response to the bytes received so far; `None` while the request is incomplete.
pub(super) fn answer(request: &[u8], bytes_max: usize) -> Option<HttpResponse> {
    let head = memchr::memmem::find(request, b"\r\n\r\n");
    let Some(head) = head else { return (request.len() > bytes_max).then_some(HttpResponse::TooLarge) };
    let line = request[..head].split(|byte| *byte == b'\r').next().unwrap_or_default();
    let words: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
    let [method, target, version] = words[..] else { return Some(HttpResponse::BadRequest) };
    if !version.starts_with(b"HTTP/1.") {
        return Some(HttpResponse::BadRequest);
    }
    let path = target.split(|byte| *byte == b'?').next().unwrap_or_default();
    Some(match (method, path) {
        (b"GET", b"/metrics") => HttpResponse::Metrics { head: false },
        (b"HEAD", b"/metrics") => HttpResponse::Metrics { head: true },
        (b"GET" | b"HEAD", _) => HttpResponse::NotFound,
        _ => HttpResponse::MethodNotAllowed,
    })
}

impl HttpResponse {
    /// Returns the bytes to send; `metrics` is called only when they are part of the response.
    pub(super) fn bytes(self, metrics: impl FnOnce() -> String) -> Vec<u8> {
        let (status, kind, body, more) = match self {
            Self::Metrics { .. } => ("200 OK", CONTENT_TYPE, metrics(), ""),
            Self::NotFound => ("404 Not Found", "text/plain", "only /metrics is here\n".to_owned(), ""),
            Self::MethodNotAllowed => {
                ("405 Method Not Allowed", "text/plain", "only GET is answered\n".to_owned(), "Allow: GET, HEAD\r\n")
            }
            Self::BadRequest => ("400 Bad Request", "text/plain", "this is no HTTP/1.1 request\n".to_owned(), ""),
            Self::TooLarge => {
                ("431 Request Header Fields Too Large", "text/plain", "the request is too long\n".to_owned(), "")
            }
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n{more}Connection: close\r\n\r\n"
        );
        let body = if self == (Self::Metrics { head: true }) { "" } else { &body };
        [head.as_bytes(), body.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn requests_are_told_apart() {
        let of = |request: &str| answer(format!("{request}\r\nHost: x\r\n\r\n").as_bytes(), 100);
        assert_eq!(of("GET /metrics HTTP/1.1"), Some(HttpResponse::Metrics { head: false }));
        assert_eq!(of("GET /metrics?x=1 HTTP/1.0"), Some(HttpResponse::Metrics { head: false }));
        assert_eq!(of("HEAD /metrics HTTP/1.1"), Some(HttpResponse::Metrics { head: true }));
        assert_eq!(of("GET / HTTP/1.1"), Some(HttpResponse::NotFound));
        assert_eq!(of("POST /metrics HTTP/1.1"), Some(HttpResponse::MethodNotAllowed));
        assert_eq!(of("GET /metrics"), Some(HttpResponse::BadRequest));
        assert_eq!(answer(b"GET /metrics HTTP/1.1\r\nHost", 100), None);
        assert_eq!(answer(&[b'x'; 101], 100), Some(HttpResponse::TooLarge));
    }

    proptest! {
        /// Any bytes have an answer or are waited for, within the limit.
        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let found = answer(&bytes, 200);
            prop_assert!(found.is_some() || bytes.len() <= 200);
        }
    }
}
