"""HTTP below the routes: the protocol and its limits, middleware, proxies, fast routes, and the OpenAPI document."""
