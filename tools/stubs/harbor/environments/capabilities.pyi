from pydantic import BaseModel

class EnvironmentCapabilities(BaseModel):
    disable_internet: bool = False
    network_allowlist: bool = False
    network_allowlist_hostnames: bool = False
    network_allowlist_wildcard_hostnames: bool = False
    network_allowlist_ipv4_addresses: bool = False
    network_allowlist_ipv6_addresses: bool = False
    dynamic_network_policy: bool = False

class EnvironmentResourceCapabilities(BaseModel):
    fractional_cpus: bool = False
