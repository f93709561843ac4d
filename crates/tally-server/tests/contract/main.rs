//! The contract suite over HTTP and over the Redis protocol, on both engines: real `tally serve` processes, called as any
//! client would.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

#[path = "../harness/mod.rs"]
mod harness;
mod hosts;
mod http;
#[path = "../cluster/place.rs"]
#[allow(dead_code, reason = "the cluster's own tests use the rest")]
mod place;
mod redis_protocol;
mod refusals;
mod skipped;

mod http_embedded {
    use crate::hosts::OnEmbedded;
    use crate::http::HttpCalls;

    tally_contract::client_contract!(OnEmbedded::<HttpCalls>::new(), skips crate::skipped::SKIPPED_HTTP_EMBEDDED);
}

mod redis_embedded {
    use crate::hosts::OnEmbedded;
    use crate::redis_protocol::RedisCalls;

    tally_contract::client_contract!(OnEmbedded::<RedisCalls>::new(), skips crate::skipped::SKIPPED_REDIS_EMBEDDED);
}

mod http_cluster {
    use crate::hosts::OnCluster;
    use crate::http::HttpCalls;

    tally_contract::client_contract!(OnCluster::<HttpCalls>::new(), skips crate::skipped::SKIPPED_HTTP_CLUSTER);
}

mod redis_cluster {
    use crate::hosts::OnCluster;
    use crate::redis_protocol::RedisCalls;

    tally_contract::client_contract!(OnCluster::<RedisCalls>::new(), skips crate::skipped::SKIPPED_REDIS_CLUSTER);
}
