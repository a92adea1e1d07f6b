//! Signs the crowd in at the service, where the secret that signs its tokens is not at hand.

use futures_util::{StreamExt, TryStreamExt, stream};
use seckill_client::{BuyerClient, Service};

use super::LoadError;
use super::plan::Buyer;

/// Sign-ins under way at the same time.
const AT_ONCE: usize = 32;

/// Gets a token for each of these users from a service in development mode.
///
/// # Errors
/// The first sign-in that fails: the service is not in development mode, or does not answer.
pub async fn sign_in(base: &str, users: impl Iterator<Item = String>, level: i64) -> Result<Vec<Buyer>, LoadError> {
    let service = Service::new(base).map_err(LoadError::Service)?;
    let sign_in = |user: String| {
        let service = service.clone();
        async move {
            match BuyerClient::dev_token(&service, &user, level).await {
                Ok(issued) => Ok(Buyer { user, token: issued.token }),
                Err(source) => Err(LoadError::SignIn { user, source }),
            }
        }
    };
    stream::iter(users).map(sign_in).buffered(AT_ONCE).try_collect().await
}
