"""The templates of infra/ in a project of one's own, with the queues that its code declares."""
