//! The operators' console: one page that calls the operators' routes.
//!
//! The page, its style and its scripts are parts of the binary. They are the same for every reader
//! and hold no secret. The page shows answers of the routes. It calls them with the token that the
//! operator enters, and keeps the token in memory only.
//!
//! Strings in those answers may come from any client, such as a `cid`. The scripts insert them as
//! text, and `POLICY` forbids the browser every other script and every way to turn a string into
//! markup.

use hyper::StatusCode;
use hyper::header::{CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, HeaderValue};
use hyper::header::{REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS};

use crate::http::answer::{Answer, text};

/// The browser's policy for the page: these files, this listener's routes, and no string as a
/// script or as markup.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
     base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";

/// Headers of every file. `no-store`: after an upgrade, no old script may call newer routes.
const HEADERS: [(HeaderName, &str); 5] = [
    (CACHE_CONTROL, "no-store"),
    (CONTENT_SECURITY_POLICY, POLICY),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (REFERRER_POLICY, "no-referrer"),
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
];

/// The page's name among [`FILES`].
const PAGE: &str = "console.html";

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Every file: its name, its type, its bytes.
const FILES: &[(&str, &str, &str)] = &[
    (PAGE, "text/html; charset=utf-8", include_str!("console/console.html")),
    ("console.css", "text/css; charset=utf-8", include_str!("console/console.css")),
    ("icon.svg", "image/svg+xml", include_str!("console/icon.svg")),
    ("console.js", SCRIPT, include_str!("console/console.js")),
    ("session.js", SCRIPT, include_str!("console/session.js")),
    ("api.js", SCRIPT, include_str!("console/api.js")),
    ("dom.js", SCRIPT, include_str!("console/dom.js")),
    ("action.js", SCRIPT, include_str!("console/action.js")),
    ("now.js", SCRIPT, include_str!("console/now.js")),
    ("metrics.js", SCRIPT, include_str!("console/metrics.js")),
    ("plot.js", SCRIPT, include_str!("console/plot.js")),
    ("money.js", SCRIPT, include_str!("console/money.js")),
    ("find.js", SCRIPT, include_str!("console/find.js")),
    ("stops.js", SCRIPT, include_str!("console/stops.js")),
    ("transfer.js", SCRIPT, include_str!("console/transfer.js")),
    ("transaction.js", SCRIPT, include_str!("console/transaction.js")),
    ("recharge.js", SCRIPT, include_str!("console/recharge.js")),
];

/// The path of the page.
pub(super) const PATH: &str = "/console";

/// The console's file at a path, if there is one.
pub(super) fn file(path: &str, request_id: &str) -> Option<Answer> {
    let name = match path.strip_prefix(PATH)? {
        "" => PAGE,
        below => below.strip_prefix('/')?,
    };
    let (_, kind, bytes) = FILES.iter().find(|(file, ..)| *file == name)?;
    let mut answer = text(StatusCode::OK, kind, (*bytes).into(), request_id);
    answer
        .headers_mut()
        .extend(HEADERS.map(|(name, value)| (name, HeaderValue::from_static(value))));
    Some(answer)
}
