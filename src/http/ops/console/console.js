// The operators' console, put together. `session.js` has the session, `api.js` calls the routes, `action.js` changes something, and each
// other file shows a part of the page.

import { awaitActions } from "./action.js";
import { findNamed, watchTransfers } from "./find.js";
import { watchMoney } from "./money.js";
import { watchMetrics } from "./now.js";
import { watchRecharges } from "./recharge.js";
import { awaitOperator } from "./session.js";
import { watchStops } from "./stops.js";
import { watchTransactions } from "./transaction.js";

watchMetrics();
watchTransfers();
watchTransactions();
watchRecharges();
watchMoney();
watchStops();
awaitActions();
awaitOperator(findNamed);
