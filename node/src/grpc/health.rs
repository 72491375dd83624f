//! `grpc.health.v1`: serving means that a write through this node would work.

use crate::core::Core;
use imprint_proto::v1::{
    admin_service_server::AdminServiceServer, log_service_server::LogServiceServer,
};
use std::{sync::Arc, time::Duration};
use tonic::server::NamedService;
use tonic_health::{ServingStatus, server::HealthReporter};

use super::services::{Admin, Log};

/// How often readiness is looked at; more often while somebody may wait for it.
const LOOK_EVERY: Duration = Duration::from_millis(50);
const LOOK_EVERY_UNREADY: Duration = Duration::from_millis(10);

/// Keeps the reporter up to date until the node stops; ends with everything "not serving".
pub(super) async fn follow(core: Arc<Core>, reporter: HealthReporter) {
    let services = [
        "",
        LogServiceServer::<Log>::NAME,
        AdminServiceServer::<Admin>::NAME,
    ];
    let mut told = None;
    loop {
        let readiness = core.readiness();
        let stopping = core.is_stopping();
        if told != Some(readiness.is_ok()) {
            match &readiness {
                Ok(()) => tracing::info!("ready: writes through this node work"),
                Err(reason) => tracing::info!(%reason, "not ready"),
            }
            let status = match readiness {
                Ok(()) => ServingStatus::Serving,
                Err(_) => ServingStatus::NotServing,
            };
            for service in services {
                reporter.set_service_status(service, status).await;
            }
            told = Some(status == ServingStatus::Serving);
        }
        if stopping {
            return;
        }
        tokio::time::sleep(match told {
            Some(true) => LOOK_EVERY,
            _ => LOOK_EVERY_UNREADY,
        })
        .await;
    }
}
