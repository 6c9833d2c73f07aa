from ratekeeper.testing import TimedStoreContract


class TestMemoryStore(TimedStoreContract):
    pass
