//! Every code of a refusal: one table of code, number, HTTP status, and whether a retry can help.
//! The README's table is checked against it.

use std::fmt;

/// Declares [`Code`] and its columns from the one table below.
macro_rules! codes {
    ($($(#[$doc:meta])* $variant:ident = $number:literal, $name:literal, $status:literal, $retry:ident, $message:literal;)+) => {
        /// A refusal that a client can act on. The log stores its number, which is never reused.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Code {
            $($(#[$doc])* #[doc = $message] $variant = $number,)+
        }

        impl Code {
            /// Every code, in the order of the table.
            pub const ALL: &'static [Code] = &[$(Code::$variant,)+];

            /// The name on the wire, for example `INSUFFICIENT_BALANCE`.
            pub fn name(self) -> &'static str {
                match self { $(Code::$variant => $name,)+ }
            }

            /// The HTTP status of an answer with this code, unless a route names another one.
            pub fn http_status(self) -> u16 {
                match self { $(Code::$variant => $status,)+ }
            }

            /// Whether the very same request may succeed later.
            pub fn retryable(self) -> bool {
                match self { $(Code::$variant => retry!($retry),)+ }
            }

            /// A sentence for people.
            pub fn message(self) -> &'static str {
                match self { $(Code::$variant => $message,)+ }
            }

            /// The code with this number, `None` for a number the table does not hold.
            pub fn from_number(number: u16) -> Option<Code> {
                match number { $($number => Some(Code::$variant),)+ _ => None }
            }

            /// The code with this name, `None` for a name the table does not hold.
            pub fn from_name(name: &str) -> Option<Code> {
                match name { $($name => Some(Code::$variant),)+ _ => None }
            }
        }
    };
}

/// The retry column in words.
macro_rules! retry {
    (retry) => {
        true
    };
    (final) => {
        false
    };
}

codes! {
    Unauthorized = 1, "UNAUTHORIZED", 401, final, "The token is missing, malformed, expired or not accepted.";
    Forbidden = 2, "FORBIDDEN", 403, final, "The token does not allow this.";
    InvalidRequest = 3, "INVALID_REQUEST", 400, final, "The request is not well formed.";
    SameAccount = 4, "SAME_ACCOUNT", 400, final, "Source and target account are the same.";
    InvalidAccountType = 5, "INVALID_ACCOUNT_TYPE", 400, final, "Not one of FUNDING, SPOT, FUTURE, MARGIN.";
    UnsupportedAccountType = 6, "UNSUPPORTED_ACCOUNT_TYPE", 400, final, "Transfers of this account type are not supported.";
    InvalidAsset = 7, "INVALID_ASSET", 400, final, "There is no such asset.";
    AssetSuspended = 8, "ASSET_SUSPENDED", 422, final, "The asset is suspended.";
    TransferNotAllowed = 9, "TRANSFER_NOT_ALLOWED", 422, final, "Internal transfers of this asset are not enabled.";
    InvalidAmount = 10, "INVALID_AMOUNT", 400, final, "The amount is not a positive plain decimal number.";
    PrecisionOverflow = 11, "PRECISION_OVERFLOW", 400, final, "The amount has more decimals than the asset.";
    Overflow = 12, "OVERFLOW", 400, final, "The amount is too large to be represented safely.";
    AmountTooSmall = 13, "AMOUNT_TOO_SMALL", 422, final, "The amount is below the asset's minimum.";
    AmountTooLarge = 14, "AMOUNT_TOO_LARGE", 422, final, "The amount is above the asset's maximum.";
    RateLimitExceeded = 15, "RATE_LIMIT_EXCEEDED", 429, retry, "Too many requests a second.";
    DailyLimitExceeded = 16, "DAILY_LIMIT_EXCEEDED", 429, retry, "Too many transfers today.";
    DailyAmountExceeded = 17, "DAILY_AMOUNT_EXCEEDED", 429, retry, "Too much of this asset transferred today.";
    DuplicateRequest = 18, "DUPLICATE_REQUEST", 409, final, "This cid was used with another body.";
    IdemKeyConflict = 19, "IDEM_KEY_CONFLICT", 409, final, "This idem_key was used with another body.";
    SourceAccountNotFound = 20, "SOURCE_ACCOUNT_NOT_FOUND", 422, final, "The source account does not exist.";
    TargetAccountNotFound = 21, "TARGET_ACCOUNT_NOT_FOUND", 422, final, "The target account does not exist.";
    AccountFrozen = 22, "ACCOUNT_FROZEN", 422, final, "The account is frozen.";
    AccountDisabled = 23, "ACCOUNT_DISABLED", 422, final, "The account is disabled.";
    InsufficientBalance = 24, "INSUFFICIENT_BALANCE", 422, final, "The available balance is below the amount.";
    TransferNotFound = 25, "TRANSFER_NOT_FOUND", 404, final, "There is no such transfer.";
    NotFound = 26, "NOT_FOUND", 404, final, "There is no such path.";
    MethodNotAllowed = 27, "METHOD_NOT_ALLOWED", 405, final, "The path does not answer this method.";
    ResolvedByOperator = 28, "RESOLVED_BY_OPERATOR", 422, final, "An operator ended an unknown outcome.";
    NotResolvable = 29, "NOT_RESOLVABLE", 409, final, "The transfer has nothing to resolve.";
    Overloaded = 30, "OVERLOADED", 503, retry, "There is no room for this request. `reason` names the resource that is short.";
    ServiceHalted = 31, "SERVICE_HALTED", 503, retry, "The service is halted. Reads continue.";
    SystemError = 32, "SYSTEM_ERROR", 503, retry, "A part of the service does not answer. It is safe to retry with the same cid.";
    HoldNotFound = 33, "HOLD_NOT_FOUND", 422, final, "There is no such hold: it never was, it has ended, or it is another's.";
    HoldExceeded = 34, "HOLD_EXCEEDED", 422, final, "The legs take more than remains of a hold.";
    InvalidPosting = 35, "INVALID_POSTING", 400, final, "The legs are not those of a posting of this kind.";
    InsufficientFrozen = 36, "INSUFFICIENT_FROZEN", 422, final, "More is taken from a frozen amount than is frozen.";
    TransactionNotFound = 37, "TRANSACTION_NOT_FOUND", 404, final, "There is no such transaction.";
    TransactionAborted = 38, "TRANSACTION_ABORTED", 422, final, "The transaction is aborted.";
    TransactionExpired = 39, "TRANSACTION_EXPIRED", 422, final, "The transaction was aborted because of its age.";
    TransactionDecided = 40, "TRANSACTION_DECIDED", 409, final, "The transaction is decided already.";
    TransactionUntried = 41, "TRANSACTION_UNTRIED", 409, final, "A branch of the transaction is not tried yet.";
    TxIdConflict = 42, "TX_ID_CONFLICT", 409, final, "This tx_id and round was used with another body.";
    ParticipantRefused = 43, "PARTICIPANT_REFUSED", 422, final, "A participant refused the transaction.";
    UnknownParticipant = 44, "UNKNOWN_PARTICIPANT", 400, final, "There is no participant with this name.";
    WithdrawalHeld = 45, "WITHDRAWAL_HELD", 503, retry, "The withdrawal waits for a clean round of the audit. Nothing has moved.";
    InvalidChannel = 46, "INVALID_CHANNEL", 400, final, "There is no such channel for this asset.";
    ChannelSuspended = 47, "CHANNEL_SUSPENDED", 422, final, "The channel takes no new orders.";
    ChannelRefused = 48, "CHANNEL_REFUSED", 422, final, "The channel refused the order.";
    PromotionNotApplicable = 49, "PROMOTION_NOT_APPLICABLE", 422, final, "The promotion does not apply to this order.";
    RechargeNotFound = 50, "RECHARGE_NOT_FOUND", 404, final, "There is no such recharge.";
    RechargePaid = 51, "RECHARGE_PAID", 409, final, "The recharge is paid.";
    NotReturnable = 52, "NOT_RETURNABLE", 409, final, "The payment does not have so much to return.";
    TooManyOpen = 53, "TOO_MANY_OPEN", 429, retry, "The user has too many open recharges.";
    HeldEnded = 54, "HELD_ENDED", 422, final, "The payment of the recharge was held, and did not pay it.";
    NotLeader = 55, "NOT_LEADER", 409, retry, "Another node acts for this signer. The header X-Signer-Owner names it.";
    TxNotFound = 56, "TX_NOT_FOUND", 404, final, "There is no such chain transaction.";
    SignerUnknown = 57, "SIGNER_UNKNOWN", 422, final, "There is no such signer.";
    SignerSuspended = 58, "SIGNER_SUSPENDED", 503, retry, "The signer is suspended.";
    TxWouldRevert = 59, "TX_WOULD_REVERT", 422, final, "The call would fail on chain.";
    NotCancellable = 60, "NOT_CANCELLABLE", 409, final, "The chain transaction has ended.";
    InvalidAddress = 61, "INVALID_ADDRESS", 400, final, "The address is not 0x and 40 hexadecimal digits, or its mixed case is not its checksum.";
    SignerPolicy = 62, "SIGNER_POLICY", 422, final, "The policy of the signer forbids it.";
}

impl Code {
    /// Every code that the service sends. The others are of nodes (`ubscore txm serve`).
    pub fn of_service() -> impl Iterator<Item = Code> {
        Code::ALL.iter().copied().filter(|code| !code.is_of_nodes())
    }

    /// Whether only the nodes of the transaction manager send it.
    pub fn is_of_nodes(self) -> bool {
        matches!(
            self,
            Code::NotLeader
                | Code::TxNotFound
                | Code::SignerUnknown
                | Code::SignerSuspended
                | Code::TxWouldRevert
                | Code::NotCancellable
                | Code::InvalidAddress
                | Code::SignerPolicy
        )
    }
}

impl fmt::Display for Code {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::Code;

    #[test]
    fn number_and_name_lead_back_to_the_code() {
        for &code in Code::ALL {
            assert_eq!(Code::from_number(code as u16), Some(code));
            assert_eq!(Code::from_name(code.name()), Some(code));
        }
        assert_eq!(Code::from_number(0), None);
    }
}
