// The operators' console, put together. `session.js` has the session, `api.js` calls the routes, `deed.js` changes something, and each
// other file shows a part of the page.

import { awaitDeeds } from "./deed.js";
import { findNamed, watchTransfers } from "./find.js";
import { watchMoney } from "./money.js";
import { watchMetrics } from "./now.js";
import { awaitOperator } from "./session.js";
import { watchStops } from "./stops.js";

watchMetrics();
watchTransfers();
watchMoney();
watchStops();
awaitDeeds();
awaitOperator(findNamed);
