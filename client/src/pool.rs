//! One HTTP/2 connection per server address, opened when first needed and again when it broke.
//!
//! The pool knows nothing of topics or leaders; `routes` decides which address a call goes to.

use crate::dial::Dial;
use crate::options::ClientOptions;
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;
use tonic::transport::{Channel, Endpoint, Uri};

/// Bytes a server may have under way to us per stream before it waits for credit: two of the largest
/// default poll replies, so that a prefetched reply never stalls on the window.
const STREAM_WINDOW_BYTES: u32 = 8 << 20;
/// The same for all streams of a connection together.
const CONNECTION_WINDOW_BYTES: u32 = 32 << 20;
/// Largest HTTP/2 frame accepted: fewer, larger frames cost less per byte.
const MAX_FRAME_BYTES: u32 = 1 << 20;
/// Connections kept. Addresses come from the caller and from the cluster's hints; a cluster that
/// keeps changing addresses must not grow this without end.
const MAX_CHANNELS: usize = 256;

/// Connections by address.
#[derive(Debug)]
pub(crate) struct Pool {
    dial: Arc<dyn Dial>,
    options: ClientOptions,
    channels: Mutex<HashMap<Arc<str>, Channel>>,
}

impl Pool {
    pub fn new(dial: Arc<dyn Dial>, options: ClientOptions) -> Pool {
        Pool {
            dial,
            options,
            channels: Mutex::new(HashMap::new()),
        }
    }

    /// The connection to `address`. It is made by the first call that uses it.
    pub fn channel(&self, address: &Arc<str>) -> Result<Channel, tonic::transport::Error> {
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let channel = self.open(address)?;
        if channels.len() >= MAX_CHANNELS {
            channels.clear();
        }
        channels.insert(Arc::clone(address), channel.clone());
        Ok(channel)
    }

    /// Forgets the connection to `address`, so that the next call dials anew.
    pub fn forget(&self, address: &str) {
        self.channels.lock().remove(address);
    }

    fn open(&self, address: &Arc<str>) -> Result<Channel, tonic::transport::Error> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_frame_size(MAX_FRAME_BYTES)
            .http2_keep_alive_interval(self.options.keepalive_interval)
            .keep_alive_timeout(self.options.keepalive_timeout);
        let (dial, address) = (Arc::clone(&self.dial), Arc::clone(address));
        let connector = tower::service_fn(move |_: Uri| {
            let dialling = dial.dial(&address);
            async move { dialling.await.map(TokioIo::new) }
        });
        Ok(endpoint.connect_with_connector_lazy(connector))
    }
}
