//! Readiness of sockets, level-triggered.

use rustix::{
    buffer::spare_capacity,
    event::{Timespec, epoll},
    fd::{AsFd, OwnedFd},
    io::Errno,
};
use std::io;

use crate::clock::SECOND;
pub(crate) use epoll::EventFlags as Interest;

/// One socket that can be read or written.
#[derive(Clone, Copy)]
pub(crate) struct Ready {
    /// The token under which it was added.
    pub(crate) token: u64,
    pub(crate) writable: bool,
    /// Bytes, end of file or an error are there.
    pub(crate) readable: bool,
}

/// An epoll instance.
pub(crate) struct Poll {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poll {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, events: Vec::with_capacity(1024) })
    }

    pub(crate) fn add(&self, socket: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, socket, epoll::EventData::new_u64(token), interest)?)
    }

    pub(crate) fn modify(&self, socket: impl AsFd, token: u64, interest: Interest) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(token), interest)?)
    }

    pub(crate) fn remove(&self, socket: impl AsFd) -> io::Result<()> {
        Ok(epoll::delete(&self.epoll, socket)?)
    }

    /// Waits for readiness, at most `timeout_ns`; appends to `ready`.
    pub(crate) fn wait(&mut self, timeout_ns: Option<u64>, ready: &mut Vec<Ready>) -> io::Result<()> {
        let timeout =
            timeout_ns.map(|ns| Timespec { tv_sec: (ns / SECOND).cast_signed(), tv_nsec: (ns % SECOND).cast_signed() });
        self.events.clear();
        match epoll::wait(&self.epoll, spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        ready.extend(self.events.iter().map(|event| {
            let (flags, data) = (event.flags, event.data);
            Ready {
                token: data.u64(),
                writable: flags.contains(Interest::OUT),
                readable: flags.intersects(Interest::IN | Interest::HUP | Interest::ERR | Interest::RDHUP),
            }
        }));
        Ok(())
    }
}
