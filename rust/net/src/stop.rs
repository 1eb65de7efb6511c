//! Tells a running exchange that it should end.

use std::future::poll_fn;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Poll, Waker};

use foreword_core::error::Fault;

use crate::outbox::locked;

/// Why an exchange should end.
#[derive(Clone, Debug)]
pub(crate) enum Why {
    /// Its client left.
    Left,
    /// The sidecar goes; its client is told this.
    Closing(Fault),
}

/// One exchange's stop. Asked at every event, it costs one load until it is told.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    told: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    why: Option<Why>,
    waiting: Option<Waker>,
}

impl Stop {
    /// Tells it. What was told first holds.
    pub(crate) fn tell(&self, why: Why) {
        let mut state = locked(&self.state);
        state.why.get_or_insert(why);
        self.told.store(true, Ordering::Release);
        let waiting = state.waiting.take();
        drop(state);
        if let Some(waiting) = waiting {
            waiting.wake();
        }
    }

    /// Waits until it is told. For one waiter.
    pub(crate) async fn told(&self) -> Why {
        let mut known: Option<Waker> = None;
        poll_fn(|cx| {
            let unchanged = known.as_ref().is_some_and(|known| known.will_wake(cx.waker()));
            if unchanged && !self.told.load(Ordering::Acquire) {
                return Poll::Pending;
            }
            let mut state = locked(&self.state);
            if let Some(why) = &state.why {
                return Poll::Ready(why.clone());
            }
            state.waiting = Some(cx.waker().clone());
            known = Some(cx.waker().clone());
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn a_waiter_is_woken_and_hears_what_was_told_first() {
        let stop = Arc::new(Stop::default());
        let waiter = tokio::spawn({
            let stop = Arc::clone(&stop);
            async move { stop.told().await }
        });
        tokio::task::yield_now().await;
        stop.tell(Why::Left);
        stop.tell(Why::Closing(Fault::internal("later")));
        assert!(matches!(waiter.await.unwrap(), Why::Left));
        assert!(matches!(stop.told().await, Why::Left));
    }

    #[tokio::test]
    async fn a_wait_may_go_from_task_to_task() {
        let stop = Arc::new(Stop::default());
        let waiting = Arc::clone(&stop);
        let mut told = Box::pin(async move { waiting.told().await });
        assert!(poll_once(&mut told).is_pending());
        let waiter = tokio::spawn(told);
        tokio::task::yield_now().await;
        stop.tell(Why::Left);
        assert!(matches!(waiter.await.unwrap(), Why::Left));
    }

    fn poll_once(future: &mut (impl Future<Output = Why> + Unpin)) -> Poll<Why> {
        std::pin::Pin::new(future).poll(&mut std::task::Context::from_waker(Waker::noop()))
    }
}
