"""Authentication, authorisation of each endpoint, and the routes of users and tokens."""
