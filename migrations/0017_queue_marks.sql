-- Marks that have come out of their queue. A queue delivers in order: what was sent before a mark was published has been
-- delivered when the mark has, unless the broker lost it.
CREATE TABLE queue_marks (
    queue        text        NOT NULL,
    published_at timestamptz NOT NULL,
    passed_at    timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (queue, published_at)
);
