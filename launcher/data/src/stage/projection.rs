//! Buffers and dictionaries of an Arrow stream or file that belong to the columns that are read: other buffers are not decompressed, and
//! other dictionaries are skipped.
//!
//! Source: the format's Columnar.rst, "Buffer Listing for Each Layout".

use arrow_ipc::Field;
use arrow_schema::{DataType, Schema};
use std::collections::HashSet;

#[derive(Debug)]
pub(super) struct Projection {
    columns: Vec<(DataType, bool)>,
    /// Ids of the dictionaries of columns that are read; `None` for all.
    shared: Option<HashSet<i64>>,
}

impl Projection {
    pub(super) fn new(schema: &Schema, columns: &[usize]) -> Self {
        let read: HashSet<usize> = columns.iter().copied().collect();
        let fields = schema.fields().iter().enumerate();
        let columns = fields.map(|(at, field)| (field.data_type().clone(), read.contains(&at))).collect();
        Self { columns, shared: None }
    }

    /// Restricts dictionaries to those of the columns that are read; `fields` are the schema's fields in the format's metadata.
    pub(super) fn sharing<'a>(mut self, fields: impl Iterator<Item = Field<'a>>) -> Self {
        let mut shared = HashSet::new();
        let read = fields.zip(&self.columns).filter(|(_, (_, is_read))| *is_read);
        read.for_each(|(field, _)| dictionaries(field, &mut shared));
        self.shared = Some(shared);
        self
    }

    pub(super) fn shares(&self, dictionary: i64) -> bool {
        self.shared.as_ref().is_none_or(|shared| shared.contains(&dictionary))
    }

    /// Returns for each buffer of a batch whether it is read. `None` if the buffers do not match the columns, or a type is unknown.
    /// `views` are the numbers of variadic buffers of each view column.
    pub(super) fn buffers(&self, count: usize, mut views: impl Iterator<Item = i64>) -> Option<Vec<bool>> {
        let mut all = Vec::new();
        for (kind, is_read) in &self.columns {
            let own = buffers(kind, &mut views)?;
            all.resize(all.len().checked_add(own).filter(|end| *end <= count)?, *is_read);
        }
        (all.len() == count).then_some(all)
    }
}

fn dictionaries(field: Field<'_>, found: &mut HashSet<i64>) {
    found.extend(field.dictionary().map(|own| own.id()));
    field.children().into_iter().flatten().for_each(|inner| dictionaries(inner, found));
}

fn buffers(kind: &DataType, views: &mut dyn Iterator<Item = i64>) -> Option<usize> {
    use DataType as D;
    Some(match kind {
        D::Null => 0,
        D::Utf8 | D::LargeUtf8 | D::Binary | D::LargeBinary => 3,
        D::Utf8View | D::BinaryView => usize::try_from(views.next()?).ok()?.checked_add(2)?,
        D::List(of) | D::LargeList(of) | D::Map(of, _) => 2 + buffers(of.data_type(), views)?,
        D::FixedSizeList(of, _) => 1 + buffers(of.data_type(), views)?,
        D::Struct(of) => of.iter().try_fold(1, |sum, field| Some(sum + buffers(field.data_type(), views)?))?,
        D::ListView(_) | D::LargeListView(_) | D::Union(..) | D::RunEndEncoded(..) => return None,
        // A validity buffer and a buffer of values or keys.
        _ => 2,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_schema::{Field, Fields, UnionFields, UnionMode};

    #[test]
    fn every_column_is_told_from_those_beside_it() {
        let field = |name: &str, kind: DataType| Field::new(name, kind, true);
        let of = |kind| field("item", kind).into();
        let kinds = [
            DataType::Float64,
            DataType::Utf8View,
            DataType::Null,
            DataType::List(of(DataType::Utf8)),
            DataType::Struct(Fields::from(vec![field("a", DataType::Boolean), field("b", DataType::Utf8View)])),
            DataType::FixedSizeList(of(DataType::Int8), 2),
            DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8)),
        ];
        let schema = Schema::new(kinds.into_iter().map(|kind| field("c", kind)).collect::<Vec<_>>());
        // Two, one of views and two; none; five; one, two and none of views; three; two.
        let count = 2 + 3 + 5 + 1 + 2 + 2 + 3 + 2;
        for (column, at) in [(0, 0..2), (1, 2..5), (2, 5..5), (3, 5..10), (4, 10..15), (5, 15..18), (6, 18..20)] {
            let found = Projection::new(&schema, &[column]).buffers(count, [1, 0].into_iter()).unwrap();
            assert!((0..count).all(|buffer| found[buffer] == at.contains(&buffer)), "{column}: {found:?}");
        }
        let all = Projection::new(&schema, &[0]);
        for (count, views) in [(count - 1, [1, 0]), (count + 1, [1, 0]), (count, [1, 1]), (count, [-1, 2])] {
            assert_eq!(all.buffers(count, views.into_iter()), None);
        }
        assert_eq!(all.buffers(count, [1].into_iter()), None);
        let union = DataType::Union(UnionFields::empty(), UnionMode::Sparse);
        assert_eq!(Projection::new(&Schema::new(vec![field("c", union)]), &[0]).buffers(1, [].into_iter()), None);
    }
}
