-- ANALYZE of purchase_groups reads 3,000 rows instead of 30,000, and none of the arrays that nothing is searched by. A rush writes so many
-- groups that autovacuum analyzes them in its midst, which took 2.2 s of a processor for 1.9 million purchases; with this it takes 40 ms.
-- The sample is 300 rows for each unit of the largest target of a column, so every column needs one.
ALTER TABLE purchase_groups
    ALTER id SET STATISTICS 10, ALTER place SET STATISTICS 10, ALTER sale_id SET STATISTICS 10, ALTER epoch SET STATISTICS 10,
    ALTER shard SET STATISTICS 10, ALTER members SET STATISTICS 10, ALTER units SET STATISTICS 10,
    ALTER order_ids SET STATISTICS 0, ALTER user_ids SET STATISTICS 10, ALTER quantities SET STATISTICS 0,
    ALTER addresses SET STATISTICS 0, ALTER was_split SET STATISTICS 10, ALTER created_at SET STATISTICS 10,
    ALTER settled_at SET STATISTICS 10;
