from tests.fixtures.examples import load_profile

load_profile()
